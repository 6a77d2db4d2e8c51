//! [`Key`] is the meaning of a key press.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::pick::Step;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    End,
    Move(Step),
    /// The other table gets the keys that move.
    Table,
    Sort,
    Pause,
    Faster,
    Slower,
    Map,
    Help,
    /// Begins the text of the filter.
    Filter,
    Type(char),
    Erase,
    /// Ends the text of the filter.
    Enter,
    /// Closes a page, or else ends the filter. A text in writing ends first.
    Escape,
    /// Draws all cells again.
    Clear,
    /// The terminal has another size, or the key has no meaning.
    Redraw,
}

impl Key {
    /// Returns the meaning of a key, which is a letter while the user types a text.
    pub fn of(key: KeyEvent, is_typing: bool) -> Self {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => Self::End,
            KeyCode::Char('l') if is_control => Self::Clear,
            KeyCode::Char(_) if is_control => Self::Redraw,
            KeyCode::Char(letter) if is_typing => Self::Type(letter),
            KeyCode::Char(letter) => Self::of_letter(letter),
            KeyCode::Up => Self::Move(Step::Up),
            KeyCode::Down => Self::Move(Step::Down),
            KeyCode::PageUp => Self::Move(Step::PageUp),
            KeyCode::PageDown => Self::Move(Step::PageDown),
            KeyCode::Home => Self::Move(Step::First),
            KeyCode::End => Self::Move(Step::Last),
            KeyCode::Tab | KeyCode::BackTab => Self::Table,
            KeyCode::Backspace => Self::Erase,
            KeyCode::Enter => Self::Enter,
            KeyCode::Esc => Self::Escape,
            _ => Self::Redraw,
        }
    }

    fn of_letter(letter: char) -> Self {
        match letter {
            'q' => Self::End,
            'k' => Self::Move(Step::Up),
            'j' => Self::Move(Step::Down),
            's' => Self::Sort,
            'p' | ' ' => Self::Pause,
            '+' => Self::Faster,
            '-' => Self::Slower,
            'm' => Self::Map,
            'h' | '?' => Self::Help,
            '/' => Self::Filter,
            _ => Self::Redraw,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_text_while_the_user_types() {
        let press = |letter, modifiers| KeyEvent::new(KeyCode::Char(letter), modifiers);
        let (none, control) = (KeyModifiers::NONE, KeyModifiers::CONTROL);
        for (letter, key) in [('q', Key::End), ('j', Key::Move(Step::Down)), ('/', Key::Filter)] {
            assert_eq!(Key::of(press(letter, none), false), key);
            assert_eq!(Key::of(press(letter, none), true), Key::Type(letter));
        }
        for is_typing in [false, true] {
            assert_eq!(Key::of(press('c', control), is_typing), Key::End);
            assert_eq!(Key::of(press('q', control), is_typing), Key::Redraw);
            let escape = KeyEvent::new(KeyCode::Esc, none);
            assert_eq!(Key::of(escape, is_typing), Key::Escape);
        }
    }
}
