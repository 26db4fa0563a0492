//! Files: `files.getUploadURLExternal`, upload addresses, `files.completeUploadExternal` and
//! `files.delete`.
//!
//! Facts from Slack's reference pages of these methods and from issues of its SDKs: the first takes
//! a form, not JSON; a channel is named by its id alone; an upload that is never completed is
//! dropped; a file belongs to the message that shares it. What the pages do not say is refused
//! here: a second upload to an address, a second completion of a file, a thread of another channel.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::args::read_args;
use super::{No, Post, Slack};
use crate::server::{Received, Reply};

pub(super) const SCOPE: &str = "files:write";
pub(super) const UPLOADS: &str = "/upload/v1/";
/// The most characters of an image description.
const MAX_ALT: usize = 1000;

/// A file, from the request of its upload address.
#[derive(Debug, Clone, PartialEq)]
pub struct File {
    pub id: String,
    pub name: String,
    pub alt: String,
    /// The announced length.
    pub length: usize,
    /// The bytes; `None` before the upload.
    pub bytes: Option<Vec<u8>>,
    /// The message that shares the file: channel and `ts`.
    pub shared: Option<(String, String)>,
    pub deleted: bool,
    announced: Instant,
}

impl Slack {
    /// The files that a reader sees.
    pub fn shown_files(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.shared.is_some() && !file.deleted)
    }

    pub(super) fn announce(&mut self, req: &Received) -> Result<Value, No> {
        self.need(SCOPE)?;
        let args = read_args(req);
        let given = |key: &str| args.get(key).filter(|v| !v.is_empty());
        let (Some(name), Some(length)) = (given("filename"), given("length")) else {
            return Err(No {
                messages: vec!["missing required field".into()],
                ..No::from("invalid_arguments")
            });
        };
        let length = length.parse().ok().filter(|n: &usize| *n > 0).ok_or(No::from("invalid_arguments"))?;
        let alt = given("alt_txt").cloned().unwrap_or_default();
        if alt.chars().count() > MAX_ALT {
            return Err("alt_txt_too_large".into());
        }
        let id = format!("F0FAKE{:05}", self.files.len());
        let host = req.header("host").unwrap_or_default();
        let upload_url = format!("http://{host}{UPLOADS}{id}");
        let name = name.clone();
        self.files.push(File {
            id: id.clone(),
            name,
            alt,
            length,
            bytes: None,
            shared: None,
            deleted: false,
            announced: req.at,
        });
        Ok(json!({"upload_url": upload_url, "file_id": id}))
    }

    /// Accepts the bytes of a file, once, while its address is valid.
    pub(super) fn upload(&mut self, req: &Received) -> Reply {
        let id = req.path.strip_prefix(UPLOADS).unwrap_or_default();
        let life = self.upload_life;
        let Some(file) = self.files.iter_mut().find(|file| file.id == id) else {
            return Reply::text(404, "no such upload");
        };
        if file.bytes.is_some() || req.at.saturating_duration_since(file.announced) > life {
            return Reply::text(410, "the upload address was used or has expired");
        }
        if req.header("authorization").is_some() {
            return Reply::text(400, "the address is the permission: no token belongs here");
        }
        if req.body.len() != file.length {
            return Reply::text(400, &format!("expected {} bytes, got {}", file.length, req.body.len()));
        }
        file.bytes = Some(req.body.to_vec());
        Reply::text(200, &format!("OK - {}", file.length))
    }

    pub(super) fn complete(&mut self, req: &Received, args: &Value) -> Result<Value, No> {
        self.need(SCOPE)?;
        let wrong = |what: &str| No { messages: vec![what.to_owned()], ..No::from("invalid_arguments") };
        let [wanted] = args["files"].as_array().map_or(&[] as &[Value], Vec::as_slice) else {
            return Err(wrong("this stand-in takes one file [json-pointer:/files]"));
        };
        let id = args["channel_id"].as_str().ok_or_else(|| wrong("missing [json-pointer:/channel_id]"))?;
        let is_id = id.len() >= 9
            && id.starts_with(['C', 'G', 'D', 'Z'])
            && id.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
        if !is_id {
            return Err(wrong(
                "input must match regex pattern: ^[CGDZ][A-Z0-9]{8,}$ [json-pointer:/channel_id]",
            ));
        }
        let channel = self.known(id, false)?.clone();
        if !channel.member {
            return Err("not_in_channel".into());
        }
        self.at_work(&channel.id)?;
        let thread_ts = args["thread_ts"].as_str().map(str::to_owned);
        if let Some(parent) = &thread_ts {
            if !self.posts.iter().any(|p| p.channel == channel.id && p.ts == *parent && p.is_top()) {
                return Err("thread_not_found".into());
            }
        }
        let ready = |file: &File| file.bytes.is_some() && file.shared.is_none() && !file.deleted;
        let found = self.files.iter().position(|file| wanted["id"] == file.id.as_str() && ready(file));
        let at = found.ok_or(No::from("file_not_found"))?;
        let ts = self.next_ts(req);
        self.files[at].shared = Some((channel.id.clone(), ts.clone()));
        let file = self.files[at].id.clone();
        self.posts.push(Post {
            channel: channel.id,
            ts,
            thread_ts,
            text: String::new(),
            blocks: Vec::new(),
            attachments: Vec::new(),
            metadata: None,
            at: req.at,
            broadcast: false,
            edits: Vec::new(),
            file: Some(file.clone()),
        });
        // The real service fills in the shares later.
        Ok(json!({"files": [{"id": file, "title": wanted["title"], "shares": {}, "mimetype": ""}]}))
    }

    pub(super) fn delete_file(&mut self, args: &Value) -> Result<Value, No> {
        self.need(SCOPE)?;
        let id = args["file"].as_str().unwrap_or_default();
        let file = self.files.iter_mut().find(|file| file.id == id);
        let file = file.filter(|file| file.shared.is_some()).ok_or(No::from("file_not_found"))?;
        if file.deleted {
            return Err("file_deleted".into());
        }
        file.deleted = true;
        self.posts.retain(|post| post.file.as_deref() != Some(id));
        Ok(json!({}))
    }
}

/// The lifetime of an upload address.
pub(super) const UPLOAD_LIFE: Duration = Duration::from_mins(1);
