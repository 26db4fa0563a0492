//! What silences and overrides of on-call schedules have in common: people make them under their
//! name, and end them by an id or a unique beginning of one.

use stepwatch_wire::words;

use super::error::ApiError;
use crate::runtime::fresh_id;

/// The most characters of the author's name.
const MAX_AUTHOR: usize = 200;

/// The author that a request names, as one line. The name that authentication adds must not replace
/// a missing one.
pub(super) fn author(name: String) -> Result<String, ApiError> {
    let name = words::into_line(name);
    if name.trim().is_empty() || name.chars().count() > MAX_AUTHOR {
        return Err(ApiError::bad_request(format!("author: must be a name of 1 to {MAX_AUTHOR} characters")));
    }
    Ok(name)
}

/// An unused id.
pub(super) fn fresh() -> Result<String, ApiError> {
    fresh_id().map_err(|_| ApiError::unavailable("the system has no randomness"))
}

/// The refusal of an id that nothing of this kind has.
pub(super) fn unknown(kind: &str, id: &str) -> ApiError {
    ApiError::not_found(format!("there is no {kind} {id:?}"))
}

/// The one of `all` ids that is `id`, or else that begins with it.
pub(super) fn named<'a>(
    kind: &str,
    id: &str,
    all: impl Iterator<Item = &'a str>,
) -> Result<String, ApiError> {
    let found: Vec<&str> = all.filter(|one| !id.is_empty() && one.starts_with(id)).collect();
    match found.as_slice() {
        [] => Err(unknown(kind, id)),
        [one] => Ok((*one).to_owned()),
        several if several.contains(&id) => Ok(id.to_owned()),
        _ => Err(ApiError::bad_request(format!(
            "{id:?} begins the ids of more than one {kind}: give more characters"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_named_by_a_unique_beginning() {
        let of = |id: &str| named("silence", id, ["abc", "abcd", "xyz"].into_iter());
        for (id, whole) in [("x", "xyz"), ("xyz", "xyz"), ("abc", "abc"), ("abcd", "abcd")] {
            assert_eq!(of(id).unwrap(), whole);
        }
        for (id, status, why) in [
            ("", 404, "there is no silence \"\""),
            ("xyza", 404, "there is no silence \"xyza\""),
            ("ab", 400, "\"ab\" begins the ids of more than one silence: give more characters"),
        ] {
            let refused = of(id).unwrap_err();
            assert_eq!((refused.status.as_u16(), refused.message.as_str()), (status, why));
        }
    }

    #[test]
    fn an_author_is_a_name_of_one_line() {
        assert_eq!(author("ann".into()).unwrap(), "ann");
        for none in [String::new(), " ".into(), "x".repeat(201)] {
            assert_eq!(author(none).unwrap_err().status.as_u16(), 400);
        }
    }
}
