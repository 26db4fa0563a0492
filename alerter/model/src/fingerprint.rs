//! Fingerprints of sets of labels.

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// The fingerprint of a set of labels in the order of their names, as Prometheus and Alertmanager
/// make it.
pub fn fingerprint<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>) -> u64 {
    labels.fold(FNV_OFFSET, hash_label)
}

/// FNV-1a with 255 after each name and value, as in
/// github.com/prometheus/common/model/signature.go.
pub fn hash_label(hash: u64, (name, value): (&str, &str)) -> u64 {
    let name = hash_byte(name.bytes().fold(hash, hash_byte), 255);
    hash_byte(value.bytes().fold(name, hash_byte), 255)
}

pub fn hash_byte(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
}
