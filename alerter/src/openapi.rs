//! The OpenAPI document of everything that is served: the API, and what services post to us.

use crate::{api, callbacks};

pub fn document() -> utoipa::openapi::OpenApi {
    api::doc::of_api().merge_from(callbacks::routes().into_openapi())
}

/// As it is served and printed.
pub fn text() -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(&document())?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests;
