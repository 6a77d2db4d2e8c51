//! Decodes messages of the lease protocol. A message that is accepted has one form only.
#![no_main]

use glebe_lease::wire::{Answer, Message, Request};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut again = Vec::new();
    if let Ok(request) = Message::<Request>::decode(bytes) {
        request.encode(&mut again);
        assert_eq!(again, bytes);
    }
    if let Ok(answer) = Message::<Answer>::decode(bytes) {
        answer.encode(&mut again);
        // Long texts are cut.
        if again.len() == bytes.len() {
            assert_eq!(Message::<Answer>::decode(&again).unwrap(), answer);
        }
    }
});
