//! [`Filter`] shows only the rows that contain a text, in capital or small letters.

/// Most letters that the user can type.
const TYPED_MAX: usize = 32;

#[derive(Clone, Debug, Default)]
pub struct Filter {
    text: String,
    is_typing: bool,
}

impl Filter {
    pub fn new(text: String) -> Self {
        Self { text, is_typing: false }
    }

    pub fn accepts(&self, texts: &[&str]) -> bool {
        let wanted = self.text.to_lowercase();
        texts.iter().any(|text| text.to_lowercase().contains(&wanted))
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn is_typing(&self) -> bool {
        self.is_typing
    }

    pub fn begin(&mut self) {
        self.is_typing = true;
    }

    pub fn end(&mut self) {
        self.is_typing = false;
    }

    pub fn push(&mut self, letter: char) {
        if !letter.is_control() && self.text.chars().count() < TYPED_MAX {
            self.text.push(letter);
        }
    }

    pub fn erase(&mut self) {
        self.text.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_may_contain_it() {
        assert!(Filter::default().accepts(&[""]), "no filter hides nothing");
        let filter = Filter::new("Post".to_owned());
        assert!(filter.accepts(&["71", "postgres"]) && filter.accepts(&["POSTMASTER"]));
        assert!(!filter.accepts(&["71", "pos", "t"]) && !filter.accepts(&[]));
    }

    #[test]
    fn typed_letters_are_few_and_plain() {
        let mut filter = Filter::default();
        ['a', '\x1b', 'É', '文'].into_iter().for_each(|letter| filter.push(letter));
        assert_eq!(filter.text(), "aÉ文");
        assert!(filter.accepts(&["xaé文x"]));
        filter.erase();
        assert_eq!(filter.text(), "aÉ");
        (0..100).for_each(|_| filter.push('x'));
        assert_eq!(filter.text().chars().count(), TYPED_MAX);
        (0..100).for_each(|_| filter.erase());
        assert_eq!(filter.text(), "");
    }
}
