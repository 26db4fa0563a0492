//! The OpenAPI document of all routes: the API, and the callbacks of services.

use crate::{api, callbacks};

pub fn document() -> utoipa::openapi::OpenApi {
    api::doc::of_api().merge_from(callbacks::routes().into_openapi())
}

/// The document as it is served and printed.
pub fn text() -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(&document())?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests;
