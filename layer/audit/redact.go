package audit

import (
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"
)

// mask replaces text that looks like a secret.
const mask = "•••"

const secretWord = `(?i:[\w.-]*(?:token|secret|passwd|password|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credential)[\w.-]*)`

// A redaction replaces the text of a form.
type redaction struct {
	form *regexp.Regexp
	with string
}

// redactions returns the forms of secrets. It compiles them once, at the first call: most commands
// record nothing.
var redactions = sync.OnceValue(func() []redaction {
	const value = `("[^"]*"|'[^']*'|[^\s"';&|]+)`
	return []redaction{
		{regexp.MustCompile(`(` + secretWord + `\s*[=:]\s*)` + value), "${1}" + mask},
		{regexp.MustCompile(`(--?` + secretWord + `\s+)` + value), "${1}" + mask},
		{regexp.MustCompile(`(?i)((?:bearer|basic)\s+)[\w.~+/=-]{6,}`), "${1}" + mask},
		{regexp.MustCompile(`(://[^\s/:@]*:)[^\s/@]+(@)`), "${1}" + mask + "${2}"},
		{regexp.MustCompile(`atoll_key_[0-9a-f]{16}_[0-9a-f]{64}|\b(?:gh[pousr]_|github_pat_|sk-|xox[abprs]-|glpat-|AKIA)[\w-]{12,}`), mask},
	}
})

// secretFlag returns the form of a flag whose argument is a secret.
var secretFlag = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^--?` + secretWord + `$`) })

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
		if i > 0 && secretFlag().MatchString(some[i-1]) && !strings.HasPrefix(arg, "-") {
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
	for _, w := range redactions() {
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
