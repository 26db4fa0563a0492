//! The functions, under the names by which programs look them up.

pub(crate) mod activity;
pub(crate) mod errors;
pub(crate) mod events;
pub(crate) mod fields;
pub(crate) mod gpm;
pub(crate) mod identity;
pub(crate) mod library;
pub(crate) mod links;
pub(crate) mod mig;

/// The one function whose faults may be of a field.
pub(crate) const FIELD_VALUES: &str = "nvmlDeviceGetFieldValues";

/// Functions of the library: each gets the world, initialised.
macro_rules! calls {
    ($(fn $name:ident($world:ident $(, $arg:ident: $type:ty)* $(,)?) $body:block)*) => {
        $(#[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $type),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            let answer = || -> $crate::handles::Answer {
                let mut entered = $crate::world::enter(stringify!($name), None)?;
                let $world = entered.world()?;
                $world.ready()?;
                $body
            };
            $crate::api::returned(answer())
        })*
    };
}

/// Functions of a device: each gets a view of it.
macro_rules! device_calls {
    ($(fn $name:ident($view:ident $(, $arg:ident: $type:ty)* $(,)?) $body:block)*) => {
        $(#[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name(
            device: $crate::handles::Device $(, $arg: $type)*
        ) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            let answer = || -> $crate::handles::Answer {
                let mut entered = $crate::world::enter(stringify!($name), Some(device))?;
                #[allow(unused_mut, reason = "most change what they count")]
                let mut $view = entered.world()?.view(device)?;
                $body
            };
            $crate::api::returned(answer())
        })*
    };
}

pub(crate) use {calls, device_calls};

pub(crate) fn returned(answer: crate::handles::Answer) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
    match answer {
        Ok(()) => nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_SUCCESS,
        Err(code) => code.value(),
    }
}
