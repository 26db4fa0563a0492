use futures_util::FutureExt as _;
use stepwatch_remote_write::Report;

use super::*;

/// A protobuf field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
    field.extend(bytes);
    field
}

fn label(name: &str, value: &str) -> Vec<u8> {
    field(1, &[field(1, name.as_bytes()), field(2, value.as_bytes())].concat())
}

/// A request of 1.0 with one sample at the present time.
fn request(name: &str, value: f64) -> Bytes {
    let mut sample = vec![1 << 3 | 1];
    sample.extend(value.to_le_bytes());
    sample.push(2 << 3);
    let mut ts = wall().0.unsigned_abs();
    while ts >= 0x80 {
        sample.push(ts as u8 | 0x80);
        ts >>= 7;
    }
    sample.push(ts as u8);
    let series = [
        label("__name__", name),
        label("instance", "node001:9765"),
        label("run", "llama"),
        field(2, &sample),
    ];
    snap::raw::Encoder::new().compress_vec(&field(1, &series.concat())).unwrap().into()
}

fn door() -> (RemoteWrite, mpsc::Receiver<WriteBatch>) {
    let (out, batches) = mpsc::channel(1);
    (RemoteWrite::new(Config::default(), out, WriteMetrics::default()), batches)
}

async fn take(door: &RemoteWrite, body: Bytes) -> Result<Written, Refusal> {
    door.take(Version::V1, body, String::new()).await
}

#[tokio::test]
async fn a_request_is_answered_when_it_is_judged() {
    let (door, mut batches) = door();
    let (sender, body) = (door.clone(), request("train_step", 7.0));
    let answer = tokio::spawn(async move { take(&sender, body).await });
    let batch = batches.recv().await.unwrap();
    assert_eq!(batch.reports[0].0.as_ref(), "remote_write/node001:9765");
    assert!(matches!(batch.reports[1].1, Report::Event(_)), "{:?}", batch.reports);
    assert!(!answer.is_finished());
    batch.reply.send(()).unwrap();
    let written = answer.await.unwrap().unwrap();
    assert_eq!((written.totals.samples, written.refused), (1, 0));
}

#[tokio::test]
async fn what_means_nothing_waits_for_nobody() {
    let (door, mut batches) = door();
    assert_eq!(take(&door, request("node_load1", 7.0)).await.unwrap().totals.samples, 1);
    assert!(batches.recv().now_or_never().is_none());
}

#[tokio::test]
async fn what_can_never_be_read_is_refused_for_good_and_what_may_be_later_is_not() {
    let (door, batches) = door();
    for body in [&b"no snappy"[..], b"\xff\xff\xff\xff\x0f", &snap_of(b"\x0a\x05ab")] {
        let refusal = take(&door, Bytes::copy_from_slice(body)).await.unwrap_err();
        assert!(matches!(refusal, Refusal::Malformed(_)), "{refusal:?}");
    }
    let tenant = |n: usize| door.take(Version::V1, request("x", 1.0), format!("t{n}"));
    for n in 0..stepwatch_remote_write::MAX_TENANTS {
        tenant(n).await.unwrap();
    }
    assert!(matches!(tenant(9999).await, Err(Refusal::Malformed(_))));
    drop(batches);
    let stopping = take(&door, request("train_step", 7.0)).await.unwrap_err();
    assert!(matches!(stopping, Refusal::Later(_)), "{stopping:?}");
}

fn snap_of(bytes: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(bytes).unwrap()
}
