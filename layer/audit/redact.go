package audit

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// hidden is in the place of what looks like a secret.
const hidden = "•••"

var (
	secretWord  = `(?i:[\w.-]*(?:token|secret|passwd|password|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credential)[\w.-]*)`
	assignment  = regexp.MustCompile(`(` + secretWord + `\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s"';&|]+)`)
	flagBefore  = regexp.MustCompile(`(--?` + secretWord + `\s+)("[^"]*"|'[^']*'|[^\s"';&|]+)`)
	bearer      = regexp.MustCompile(`(?i)((?:bearer|basic)\s+)[\w.~+/=-]{6,}`)
	ofURL       = regexp.MustCompile(`(://[^\s/:@]*:)[^\s/@]+(@)`)
	known       = regexp.MustCompile(`atoll_key_[0-9a-f]{16}_[0-9a-f]{64}|\b(?:gh[pousr]_|github_pat_|sk-|xox[abprs]-|glpat-|AKIA)[\w-]{12,}`)
	onlyAFlag   = regexp.MustCompile(`^--?` + secretWord + `$`)
	withoutName = []struct {
		form *regexp.Regexp
		with string
	}{{assignment, "${1}" + hidden}, {flagBefore, "${1}" + hidden}, {bearer, "${1}" + hidden}, {ofURL, "${1}" + hidden + "${2}"}, {known, hidden}}
)

// Bounds on what is kept of a command.
const (
	mostText = 2048 // bytes of an argument, or of a message
	mostArgs = 64
)

// redacted is a command without what looks like a secret: values of what is named like
// one, what follows a flag that is, passwords in URLs, tokens of known forms. It is a
// guess: a secret that looks like nothing is kept.
func redacted(args []string) []string {
	if args == nil {
		return nil
	}
	some := args[:min(len(args), mostArgs)]
	out := make([]string, 0, len(some)+1)
	for i, arg := range some {
		if i > 0 && onlyAFlag.MatchString(some[i-1]) && !strings.HasPrefix(arg, "-") {
			out = append(out, hidden)
			continue
		}
		out = append(out, cut(withoutSecrets(arg), mostText))
	}
	if len(args) > len(some) {
		out = append(out, "...")
	}
	return out
}

// withoutSecrets is an argument, or a message, which may tell of one, without what looks like
// a secret by itself.
func withoutSecrets(text string) string {
	for _, w := range withoutName {
		text = w.form.ReplaceAllString(text, w.with)
	}
	return text
}

// cut is at most n bytes of s, at the end of a character, and says if there is more.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}
