//! The memory of the transceiver or cable in a network port, by `ETHTOOL_MSG_MODULE_EEPROM_GET` of
//! the ethtool family of generic netlink (include/uapi/linux/ethtool_netlink.h of torvalds/linux,
//! since 5.13). It reads half a page of 128 bytes at a time. Unlike the older ioctl, it reaches the
//! pages of modules for 200 Gb/s and more. The kernel requires CAP_NET_ADMIN for it, although it
//! only reads.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// Bytes that one request reads.
pub const HALF_PAGE: usize = 128;
/// The timeout of a request: the driver asks its firmware, and that the module, which may hang.
const PATIENCE: Duration = Duration::from_secs(5);
/// The size of the answer's buffer in bytes; no answer is larger.
const MAX_ANSWER: usize = 8192;

/// The length in bytes of the headers of a message, a generic netlink message and an attribute.
const HEADER: usize = 16;
const GENERIC: usize = 4;
const ATTRIBUTE: usize = 4;
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
/// The family that resolves the ids of families, and its command.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const ETHTOOL: &[u8] = b"ethtool\0";
/// `ETHTOOL_MSG_MODULE_EEPROM_GET` and its attributes.
const GET_EEPROM: u8 = 31;
const DEVICE: u16 = 1;
const DEVICE_NAME: u16 = 2;
const OFFSET: u16 = 2;
const LENGTH: u16 = 3;
const PAGE: u16 = 4;
const BANK: u16 = 5;
const I2C_ADDRESS: u16 = 6;
const DATA: u16 = 7;
const NESTED: u16 = 1 << 15;
const ATTRIBUTE_TYPE: u16 = 0x3fff;
/// The I2C address of the module; the bus has no other.
const MODULE: u8 = 0x50;

/// A socket for queries about modules, by their interfaces' names in this network namespace.
#[derive(Debug)]
pub struct Modules {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
}

/// A half of a page. The lower half, from byte 0 on, is the same for all pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    Lower,
    Upper { page: u8 },
}

impl Modules {
    /// Opens the socket. The error kind is `NotFound` if the kernel does not have this family.
    pub fn open() -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::GENERIC),
        )?;
        for timeout in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, timeout, Some(PATIENCE))?;
        }
        let mut modules = Self { socket, family: CONTROL, sequence: 0 };
        let mut body = Vec::new();
        put(&mut body, FAMILY_NAME, ETHTOOL);
        let answer = modules.ask(GET_FAMILY, &body)?;
        let id = attributes(&answer).find(|(kind, _)| *kind == FAMILY_ID);
        let id = id.and_then(|(_, value)| value.try_into().ok()).map(u16::from_ne_bytes);
        modules.family = id.ok_or(io::ErrorKind::NotFound)?;
        Ok(modules)
    }

    /// Returns a half page, or as much of it as the module has.
    ///
    /// The error kind is `PermissionDenied` without CAP_NET_ADMIN, and `Unsupported` if the driver
    /// of the device cannot read modules.
    pub fn read(&mut self, device: &str, half: Half) -> io::Result<Vec<u8>> {
        if device.is_empty() || device.len() >= libc::IFNAMSIZ || device.bytes().any(|b| b == 0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (page, offset) = match half {
            Half::Lower => (0, 0),
            Half::Upper { page } => (page, HALF_PAGE as u32),
        };
        let mut name = Vec::new();
        put(&mut name, DEVICE_NAME, &[device.as_bytes(), b"\0"].concat());
        let mut body = Vec::new();
        put(&mut body, DEVICE | NESTED, &name);
        put(&mut body, OFFSET, &offset.to_ne_bytes());
        put(&mut body, LENGTH, &(HALF_PAGE as u32).to_ne_bytes());
        put(&mut body, PAGE, &[page]);
        put(&mut body, BANK, &[0]);
        put(&mut body, I2C_ADDRESS, &[MODULE]);
        let answer = self.ask(GET_EEPROM, &body)?;
        let data = attributes(&answer).find(|(kind, _)| *kind == DATA);
        data.map(|(_, bytes)| bytes.to_vec()).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Sends one request, and returns the attributes of its answer.
    fn ask(&mut self, command: u8, body: &[u8]) -> io::Result<Vec<u8>> {
        self.sequence = self.sequence.wrapping_add(1);
        let length = (HEADER + GENERIC + body.len()) as u32;
        let mut message = Vec::with_capacity(length as usize);
        message.extend(length.to_ne_bytes());
        message.extend(self.family.to_ne_bytes());
        message.extend(REQUEST.to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend([command, 1, 0, 0]);
        message.extend(body);
        rustix::net::send(&self.socket, &message, SendFlags::empty())?;
        loop {
            let mut answer = vec![0; MAX_ANSWER];
            let (read, _) = match rustix::net::recv(&self.socket, &mut answer[..], RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                read => read?,
            };
            answer.truncate(read);
            // An answer with another number belongs to a request that has timed out.
            if u32_at(&answer, 8) == Some(self.sequence) {
                return content(answer);
            }
        }
    }
}

/// The attributes of a message, or the error that it contains.
fn content(mut message: Vec<u8>) -> io::Result<Vec<u8>> {
    let kind = message.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    if kind == Some(ERROR) {
        let code = u32_at(&message, HEADER).unwrap_or_default().cast_signed();
        return Err(io::Error::from_raw_os_error(code.checked_neg().unwrap_or(libc::EINVAL)));
    }
    if message.len() < HEADER + GENERIC {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(message.split_off(HEADER + GENERIC))
}

/// Appends an attribute, padded to four bytes.
fn put(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend(((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// The attributes with their values, up to the first malformed one.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(ATTRIBUTE..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & ATTRIBUTE_TYPE, value))
    })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_are_written() {
        let mut body = Vec::new();
        put(&mut body, DEVICE | NESTED, b"ab");
        put(&mut body, DATA, &[7; 5]);
        assert_eq!(body.len(), 8 + 12);
        let read: Vec<_> = attributes(&body).collect();
        assert_eq!(read, [(DEVICE, &b"ab"[..]), (DATA, &[7; 5][..])]);
        for length in 0..body.len() {
            assert!(attributes(&body[..length]).count() <= 2);
        }
        assert_eq!(attributes(&[1, 0, 0, 0]).count(), 0, "shorter than its own header");
    }

    #[test]
    fn an_error_is_one_and_what_is_cut_is_none() {
        let error = |code: i32| {
            let mut message = vec![0; HEADER];
            message[4..6].copy_from_slice(&ERROR.to_ne_bytes());
            message.extend(code.to_ne_bytes());
            content(message).unwrap_err()
        };
        assert_eq!(error(-libc::EPERM).kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(error(i32::MIN).raw_os_error(), Some(libc::EINVAL));
        assert_eq!(content(vec![0; HEADER]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    /// Asks the kernel of this machine about the loopback device, which has no module.
    #[test]
    fn the_kernel_understands_the_question() {
        let mut modules = match Modules::open() {
            Ok(modules) => modules,
            // A kernel without the family.
            Err(error) => return assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}"),
        };
        for half in [Half::Lower, Half::Upper { page: 0x11 }] {
            let error = modules.read("lo", half).unwrap_err();
            let said = error.raw_os_error();
            let without = [libc::EOPNOTSUPP, libc::EPERM].map(Some);
            assert!(without.contains(&said), "{half:?}: {error}");
        }
        let error = modules.read("no-such-device", Half::Lower).unwrap_err();
        assert!([libc::ENODEV, libc::EPERM].map(Some).contains(&error.raw_os_error()), "{error}");
        assert!(modules.read("a name that is too long", Half::Lower).is_err());
    }
}
