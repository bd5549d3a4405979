package audit

import (
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"
)

// mask replaces text that looks like a secret.
const mask = "•••"

const (
	// secretName is the name of a variable, a key, a header or a flag whose value is a secret.
	secretName = `(?i:[\w.-]*(?:token|secret|passwd|password|passphrase|passcode|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|` +
		`signing[_-]?key|encryption[_-]?key|credential|session[_-]?id)[\w.-]*|(?:[\w.-]*[_-]|\b)(?:pass|auth)\b|(?:[\w.-]*[_-]|;)pwd\b|(?:[\w.-]*[_-]|\b)pw\b)`
	// value is a word of a shell, or a string of JSON in one.
	value = `(?:\\"[^"]*\\"|"[^"]*"|'[^']*'|[^\s"';&|]+)`
)

// A redaction replaces the text of a form.
type redaction struct {
	form *regexp.Regexp
	with string
}

// redactions returns the forms of secrets in any text. It compiles them once, at the first call: most commands record
// nothing.
var redactions = sync.OnceValue(func() []redaction {
	return []redaction{
		{regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY[A-Za-z0-9+/=\\\s:,-]*`), mask}, // with its end, and whatever is base64
		{regexp.MustCompile(`(?i)((?:set-)?cookie:\s*)[^"'\n;&|$\x60]+(?:;\s*[\w.-]+=[^"'\n;&|$\x60]+)*`), "${1}" + mask},
		{regexp.MustCompile(`(?i)(authorization:\s*(?:\w+\s+)?)[^\s"']+`), "${1}" + mask},
		{regexp.MustCompile(`(?i)((?:bearer|basic)\s+)[\w.~+/=-]{6,}`), "${1}" + mask},
		{regexp.MustCompile(`(` + secretName + `(?:\\?["'])?\]?\s*[=:]\s*)` + value), "${1}" + mask},
		{regexp.MustCompile(`(--?` + secretName + `\s+)(?:"[^"]*"|'[^']*'|[^\s"';&|<-][^\s"';&|]*)`), "${1}" + mask},
		{regexp.MustCompile(`([?&](?i:key|sig|signature|auth|code)=)[^\s"'&]+`), "${1}" + mask},
		{regexp.MustCompile(`(://[^\s/:@]*:)[^\s/@]+(@)`), "${1}" + mask + "${2}"},
		{regexp.MustCompile(`(--from-literal[= ][\w.-]+=)` + value), "${1}" + mask},
		{regexp.MustCompile(`(\b(?:login|user|username|account)[ =]\S+\s+password )` + value), "${1}" + mask}, // of a .netrc
		{regexp.MustCompile(`(\buser(?:-\w+)?\s*=\s*"?[^\s:"]+:)[^\s"']+`), "${1}" + mask},                    // of a .curlrc
		{regexp.MustCompile(`(\bpass:)[^\s"';&|]+`), "${1}" + mask},                                           // as OpenSSL has it
		{regexp.MustCompile(strings.Join(tokens, "|")), mask},
	}
})

// tokens are the forms of tokens that services issue.
var tokens = []string{
	`atoll_key_[0-9a-f]{16}_[0-9a-f]{64}`,
	`\b(?:gh[pousr]_|github_pat_|glpat-|gl[a-z]{2,6}-|sk-|[sr]k_(?:live|test)_|whsec_|xox[abeoprs]-|xapp-|AKIA|ASIA|npm_|pypi-|hf_|gsk_|dckr_[po]at_|` +
		`do[por]_v1_|shp(?:at|ss|ca|pa)_|lin_api_|ntn_|ATATT3|AGE-SECRET-KEY-1|sq0[a-z]{3}-)[\w-]{12,}`,
	`\bAIza[\w-]{30,}`, `\bya29\.[\w-]{20,}`, `\bhv[sbr]\.[\w-]{20,}`, `\bSG\.[\w-]{16,}\.[\w-]{16,}`, `\bEAA[A-Za-z0-9]{40,}`,
	`\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*`, // a JSON web token
	`hooks\.slack\.com/services/[\w/]+`, `discord(?:app)?\.com/api/webhooks/[\w/-]+`,
}

// Limits for recorded commands.
const (
	maxText   = 2048        // bytes of an argument or a message
	maxParsed = 4 * maxText // bytes of an argument that are searched for secrets
	maxArgs   = 64
)

// redactCommand replaces text in args that looks like a secret: values whose name suggests a secret, arguments of such
// flags, passwords in URLs and in the flags of well-known programs, also in scripts of a shell, and known forms of
// tokens. Other secrets remain.
func redactCommand(args []string) []string {
	if args == nil {
		return nil
	}
	some := args[:min(len(args), maxArgs)]
	secrets := secretArgs(some)
	out := make([]string, 0, len(some)+1)
	for i, arg := range some {
		text := truncateText(arg, maxParsed)
		if keep, ok := secrets[i]; ok {
			text = text[:min(keep, len(text))] + mask
		} else if strings.ContainsAny(text, " \t\n") {
			text = redactScript(text)
		}
		out = append(out, truncateText(redactText(text), maxText))
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

// RedactText replaces text that looks like a secret in the output of a program: values whose name
// suggests a secret, passwords in URLs and known forms of tokens. Other secrets remain.
func RedactText(text string) string { return redactText(text) }

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
