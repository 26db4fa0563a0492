//! Where NCCL's RAS is looked for, somebody answers with words of their own: a job that hangs.

use std::net::SocketAddr;

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::hostile;

pub(crate) async fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            // A client hangs up when it has enough.
            let _ = answer(client).await;
        }
    });
    addr
}

async fn answer(client: TcpStream) -> std::io::Result<()> {
    let (read, mut write) = client.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await? {
        if line.starts_with("CLIENT PROTOCOL") {
            write.write_all(b"SERVER PROTOCOL 2\n").await?;
        } else if line.ends_with("STATUS") {
            return write.write_all(status().as_bytes()).await;
        } else {
            write.write_all(b"OK\n").await?;
        }
    }
    Ok(())
}

/// One of two ranks lags behind, and does not move.
fn status() -> String {
    let word = hostile("communicator");
    let rank = |n: u32| json!({"rank": n, "host": hostile("ranked"), "pid": n, "status": word, "collective_counts": {word.clone(): n}});
    let communicator = json!({"hash": word, "size": 2, "ranks": [rank(0), rank(1)], "missing_ranks": [{"rank": 1, "host": word}]});
    json!({"nccl_version": word, "communicators": [communicator]}).to_string()
}
