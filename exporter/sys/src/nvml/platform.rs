//! Where in its rack a GPU is: of Blackwell and later, on platforms that know.

use nvml_wrapper_sys::bindings as sys;

use super::{Device, Error, call, versioned};

/// Place of a GPU in its rack, as the platform reports it (`nvmlPlatformInfo_v2_t` of nvml.h).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Platform {
    /// Serial number of the chassis; empty where the platform has none.
    pub chassis: String,
    /// Number of the slot in the chassis, those of switches counted.
    pub slot: u8,
    /// Index of the tray among the compute trays of the chassis.
    pub tray: u8,
    /// Index of the host in its slot.
    pub host: u8,
    /// Id of the GPU within its host.
    pub module: u8,
    /// InfiniBand GUID in hexadecimal digits; empty where it has none.
    pub ib_guid: String,
}

impl Device {
    /// An error where the GPU or the driver is older than Blackwell, and where there is no rack.
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

/// The text of a serial number: of Blackwell 13 bytes, and zeros behind it. What is no text is
/// shown by its digits.
fn serial(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let (text, rest) = bytes.split_at(end);
    let plain = text.iter().all(u8::is_ascii_graphic) && rest.iter().all(|b| *b == 0);
    if plain { String::from_utf8_lossy(text).into_owned() } else { digits(bytes) }
}

/// Of Blackwell 8 bytes, and zeros behind it.
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
