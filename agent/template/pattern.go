package template

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
)

// Names are the values of the words in patterns: {account}, {agent}, {conversation} and
// {sandbox}. A used one must be a valid name (see atoll.ValidName), so that no caller
// can choose one that leads outside its place.
type Names struct {
	Account, Agent, Conversation, Sandbox string
}

func (n Names) lookUp(word string) string {
	return map[string]string{"account": n.Account, "agent": n.Agent, "conversation": n.Conversation, "sandbox": n.Sandbox}[word]
}

var words = []string{"account", "agent", "conversation", "sandbox"}

var placeholder = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{[^{}]*\}`) })

// findPlaceholders returns the words in a pattern.
func findPlaceholders(pattern string) []string {
	var all []string
	for _, p := range placeholder().FindAllString(pattern, -1) {
		all = append(all, strings.Trim(p, "{}"))
	}
	return all
}

// checkPattern returns an error for unknown words, and for braces without a word.
func checkPattern(key, pattern string) error {
	for _, word := range findPlaceholders(pattern) {
		if !slices.Contains(words, word) {
			return fmt.Errorf("%s: unknown word {%s}: use {%s}", key, word, strings.Join(words, "}, {"))
		}
	}
	if rest := placeholder().ReplaceAllString(pattern, ""); strings.ContainsAny(rest, "{}") {
		return fmt.Errorf("%s %q: write words in braces, like {account}", key, pattern)
	}
	return nil
}

// checkParts returns an error for patterns in which different names can give the same
// path: "{account}-{agent}" is the same for a-b and c as for a and b-c.
func checkParts(key, pattern string) error {
	for segment := range strings.SplitSeq(pattern, "/") {
		if len(findPlaceholders(segment)) > 1 {
			return fmt.Errorf("%s %q: put a / into %s, so that different names give different paths", key, pattern, segment)
		}
	}
	return checkPattern(key, pattern)
}

func checkKeys(prefix string) error {
	if err := checkParts("key_prefix", prefix); err != nil || prefix == "" {
		return err
	}
	for segment := range strings.SplitSeq(strings.Trim(prefix, "/"), "/") {
		literal := placeholder().ReplaceAllString(segment, "")
		switch {
		case segment == "", segment == ".", segment == "..":
			return fmt.Errorf("key_prefix %q: must be a path without empty parts, \".\" and \"..\"", prefix)
		case strings.ContainsFunc(literal, func(r rune) bool { return !keyRune(r) }):
			return fmt.Errorf("key_prefix %q: besides words in braces use letters, digits, '.', '_', '=' and '-'", prefix)
		}
	}
	return nil
}

func keyRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._=-", r)
}

// checkOwner returns an error for patterns in which another account can use the same
// names: accounts choose the names of their agents, conversations and sandboxes.
func checkOwner(key, pattern string) error {
	used := findPlaceholders(pattern)
	if len(used) > 0 && !slices.Contains(used, "account") {
		return fmt.Errorf("%s: {%s} needs {account} too: other accounts may use the same name", key, used[0])
	}
	return nil
}

// expandPattern replaces the words of a checked pattern.
func expandPattern(pattern string, n Names) (string, error) {
	var bad error
	text := placeholder().ReplaceAllStringFunc(pattern, func(p string) string {
		word := strings.Trim(p, "{}")
		value := n.lookUp(word)
		switch {
		case bad != nil:
		case value == "":
			bad = fmt.Errorf("%q needs a value for %s", pattern, p)
		case !atoll.ValidName(value):
			bad = fmt.Errorf("%.100q as %s: use a letter or digit, then up to 64 letters, digits, '-' or '_'", value, p)
		}
		return value
	})
	if bad != nil {
		return "", bad
	}
	return text, nil
}

// volumeName expands the pattern of a volume's name. A result made of several names, or
// too long, ends in a hash of them, since every character between two names could also
// be part of a name.
func volumeName(pattern string, n Names) (string, error) {
	name, err := expandPattern(pattern, n)
	if err != nil {
		return "", err
	}
	if used := findPlaceholders(pattern); len(used) > 1 || len(used) == 1 && len(name) > maxName {
		h := sha256.New()
		for _, word := range used {
			h.Write([]byte(n.lookUp(word) + "\x00"))
		}
		sum := hex.EncodeToString(h.Sum(nil)[:12])
		name = name[:min(len(name), maxName-1-len(sum))] + "-" + sum
	}
	if !atoll.ValidName(name) {
		return "", fmt.Errorf("%q: volumes are named by a letter or digit, then up to 64 letters, digits, '-' or '_'", name)
	}
	return name, nil
}

// maxName is the most bytes of a valid name.
const maxName = 65
