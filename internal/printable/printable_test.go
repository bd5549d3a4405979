package printable_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/printable"
)

func TestEscape(t *testing.T) {
	for s, want := range map[string]string{
		"":                           "",
		"web-1 日本 é 👩‍💻 שלום":        "web-1 日本 é 👩‍💻 שלום", // an emoji of several, and a language from right to left
		"\x1b[2J":                    `\x1b[2J`,
		"a\tb\nc":                    `a\x09b` + "\nc",
		"\x7f \u0085 \u009b31m":      `\x7f \x85 \x9b31m`,
		"\x9b31m \xff":               `\x9b31m \xff`, // not UTF-8: an old terminal executes it
		"gpj.\u202eexe":              `gpj.\u202eexe`,
		"a\u2066b\u2069c\u200fd":     `a\u2066b\u2069c\u200fd`,
		"a\u2028b":                   `a\u2028b`,
		"hidden\U000E0041\U000E007F": `hidden\U000e0041\U000e007f`,
		"\ufeffa\u2060b":             `\ufeffa\u2060b`,
		"\ufffd":                     "\ufffd",
	} {
		if got := printable.Escape(s, "\n"); got != want {
			t.Errorf("%q: got %q, want %q", s, got, want)
		}
	}
}

// The escaped text has the same values, and nothing unsafe.
func TestEscapeJSON(t *testing.T) {
	for _, s := range []string{"plain", "\x1b[0m\x7f\u009b", "\u202eabc\u2069", "\U000E0041", "tab\tand\nline", "\xff"} {
		for _, indent := range []string{"", "\t"} {
			text, err := json.MarshalIndent(map[string]any{s: []string{s}}, "", indent)
			if err != nil {
				t.Fatal(err)
			}
			got := printable.EscapeJSON(text)
			if strings.ContainsFunc(string(got), func(r rune) bool { return printable.IsUnsafe(r) && r != '\n' && r != '\t' }) {
				t.Errorf("%q: %q has unsafe characters", s, got)
			}
			var before, after map[string][]string
			if json.Unmarshal(text, &before) != nil || json.Unmarshal(got, &after) != nil {
				t.Fatalf("%q: %q is not JSON", s, got)
			}
			for key, list := range before {
				if len(after[key]) != 1 || after[key][0] != list[0] {
					t.Errorf("%q: got %q", s, after)
				}
			}
		}
	}
}
