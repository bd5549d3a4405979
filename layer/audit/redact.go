package audit

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// mask replaces text that looks like a secret.
const mask = "•••"

var (
	secretWord  = `(?i:[\w.-]*(?:token|secret|passwd|password|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credential)[\w.-]*)`
	assignment  = regexp.MustCompile(`(` + secretWord + `\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s"';&|]+)`)
	flagValue   = regexp.MustCompile(`(--?` + secretWord + `\s+)("[^"]*"|'[^']*'|[^\s"';&|]+)`)
	bearer      = regexp.MustCompile(`(?i)((?:bearer|basic)\s+)[\w.~+/=-]{6,}`)
	urlPassword = regexp.MustCompile(`(://[^\s/:@]*:)[^\s/@]+(@)`)
	knownToken  = regexp.MustCompile(`atoll_key_[0-9a-f]{16}_[0-9a-f]{64}|\b(?:gh[pousr]_|github_pat_|sk-|xox[abprs]-|glpat-|AKIA)[\w-]{12,}`)
	secretFlag  = regexp.MustCompile(`^--?` + secretWord + `$`)
	redactions  = []struct {
		form *regexp.Regexp
		with string
	}{{assignment, "${1}" + mask}, {flagValue, "${1}" + mask}, {bearer, "${1}" + mask}, {urlPassword, "${1}" + mask + "${2}"}, {knownToken, mask}}
)

// Limits for recorded commands.
const (
	maxText = 2048 // bytes of an argument or a message
	maxArgs = 64
)

// redactCommand replaces text in args that looks like a secret: values whose name suggests a
// secret, arguments of such flags, passwords in URLs, and known forms of tokens. Other secrets
// remain.
func redactCommand(args []string) []string {
	if args == nil {
		return nil
	}
	some := args[:min(len(args), maxArgs)]
	out := make([]string, 0, len(some)+1)
	for i, arg := range some {
		if i > 0 && secretFlag.MatchString(some[i-1]) && !strings.HasPrefix(arg, "-") {
			out = append(out, mask)
			continue
		}
		out = append(out, truncateText(redactText(arg), maxText))
	}
	if len(args) > len(some) {
		out = append(out, "...")
	}
	return out
}

// redactText replaces text that looks like a secret in a single argument or message.
func redactText(text string) string {
	for _, w := range redactions {
		text = w.form.ReplaceAllString(text, w.with)
	}
	return text
}

// truncateText returns at most n bytes of s, up to the end of a character, followed by "..." if s
// is longer.
func truncateText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}
