//! Locks mutexes without poisoning: their state is valid after every statement, and a panicking
//! thread must not take the metrics page down with it.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) trait Locked<T> {
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
