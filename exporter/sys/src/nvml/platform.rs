//! The place of a GPU in its rack, on Blackwell and later, if the platform reports it.

use nvml_wrapper_sys::bindings as sys;

use super::{Device, Error, call, versioned};

/// The place of a GPU in its rack (`nvmlPlatformInfo_v2_t` of nvml.h).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Platform {
    /// The serial number of the chassis; empty if there is none.
    pub chassis: String,
    /// The number of the slot in the chassis; slots of switches count.
    pub slot: u8,
    /// The index of the tray among the compute trays of the chassis.
    pub tray: u8,
    /// The index of the host in its slot.
    pub host: u8,
    /// The id of the GPU in its host.
    pub module: u8,
    /// The InfiniBand GUID in hexadecimal digits; empty if there is none.
    pub ib_guid: String,
}

impl Device {
    /// Fails if the GPU or the driver is older than Blackwell, or if there is no rack.
    pub fn platform(&self) -> Result<Platform, Error> {
        let mut info = sys::nvmlPlatformInfo_v2_t {
            version: versioned::<sys::nvmlPlatformInfo_v2_t>(2),
            ibGuid: [0; 16],
            chassisSerialNumber: [0; 16],
            slotNumber: 0,
            trayIndex: 0,
            hostId: 0,
            peerType: 0,
            moduleId: 0,
        };
        call!(self.library(), self.at(), nvmlDeviceGetPlatformInfo(self.handle(), &raw mut info))?;
        Ok(Platform {
            chassis: serial(&info.chassisSerialNumber),
            slot: info.slotNumber,
            tray: info.trayIndex,
            host: info.hostId,
            module: info.moduleId,
            ib_guid: guid(&info.ibGuid),
        })
    }
}

/// Returns the text of a serial number, which has 13 bytes on Blackwell and trailing zeros. Other
/// bytes are returned as hexadecimal digits.
fn serial(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let (text, rest) = bytes.split_at(end);
    let plain = text.iter().all(u8::is_ascii_graphic) && rest.iter().all(|b| *b == 0);
    if plain { String::from_utf8_lossy(text).into_owned() } else { digits(bytes) }
}

/// Returns a GUID as digits. It has 8 bytes on Blackwell, and trailing zeros.
fn guid(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    let length = if end == 0 { 0 } else { end.next_multiple_of(8).min(bytes.len()) };
    digits(&bytes[..length])
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serials_and_guids() {
        assert_eq!(serial(b"1821025191057\0\0\0"), "1821025191057");
        assert_eq!(serial(&[0; 16]), "");
        assert_eq!(serial(&[7, 0, 0, 0]), "07000000");
        assert_eq!(serial(&[b'a', 0, b'b', 0]), "61006200");
        assert_eq!(guid(&[0; 16]), "");
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&[0x2c, 0x5e, 0xab, 3, 0, 0x28, 0x9a, 0]);
        assert_eq!(guid(&bytes), "2c5eab0300289a00");
        bytes[15] = 1;
        assert_eq!(guid(&bytes).len(), 32);
    }
}
