package template

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// Names are what the words in patterns stand for: {account}, {agent}, {conversation} and
// {sandbox}. Each must be a valid name if it is used; see atoll.ValidName. So none leads
// out of its place, whoever has chosen it.
type Names struct {
	Account, Agent, Conversation, Sandbox string
}

func (n Names) of(word string) string {
	return map[string]string{"account": n.Account, "agent": n.Agent, "conversation": n.Conversation, "sandbox": n.Sandbox}[word]
}

var words = []string{"account", "agent", "conversation", "sandbox"}

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

// placeholders are the words in a pattern.
func placeholders(pattern string) []string {
	var all []string
	for _, p := range placeholder.FindAllString(pattern, -1) {
		all = append(all, strings.Trim(p, "{}"))
	}
	return all
}

// checkPattern refuses words that stand for nothing, and braces without one.
func checkPattern(key, pattern string) error {
	for _, word := range placeholders(pattern) {
		if !slices.Contains(words, word) {
			return fmt.Errorf("%s: {%s} stands for nothing: use {%s}", key, word, strings.Join(words, "}, {"))
		}
	}
	if rest := placeholder.ReplaceAllString(pattern, ""); strings.ContainsAny(rest, "{}") {
		return fmt.Errorf("%s %q: write words in braces, like {account}", key, pattern)
	}
	return nil
}

// checkParts refuses paths that two can share who do not have the same names: those of
// "{account}-{agent}" are the same for a-b and c as for a and b-c.
func checkParts(key, pattern string) error {
	for segment := range strings.SplitSeq(pattern, "/") {
		if len(placeholders(segment)) > 1 {
			return fmt.Errorf("%s %q: put a / into %s, so that no two are the same", key, pattern, segment)
		}
	}
	return checkPattern(key, pattern)
}

func checkKeys(prefix string) error {
	if err := checkParts("key_prefix", prefix); err != nil || prefix == "" {
		return err
	}
	for segment := range strings.SplitSeq(strings.Trim(prefix, "/"), "/") {
		literal := placeholder.ReplaceAllString(segment, "")
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

// checkOwner refuses patterns in which another account can have the same names: those of
// agents, conversations and sandboxes are its own to choose.
func checkOwner(key, pattern string) error {
	used := placeholders(pattern)
	if len(used) > 0 && !slices.Contains(used, "account") {
		return fmt.Errorf("%s: {%s} needs {account} too: other accounts may use the same name", key, used[0])
	}
	return nil
}

// expand puts names into a pattern that was checked.
func expand(pattern string, n Names) (string, error) {
	var bad error
	text := placeholder.ReplaceAllStringFunc(pattern, func(p string) string {
		word := strings.Trim(p, "{}")
		value := n.of(word)
		switch {
		case bad != nil:
		case value == "":
			bad = fmt.Errorf("%q needs a name for %s, and there is none", pattern, p)
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

// volumeName puts names into the pattern of a volume's name. What is made of several
// names, or is too long, ends in a hash of them, because nothing can stand between names
// that may not be in them.
func volumeName(pattern string, n Names) (string, error) {
	name, err := expand(pattern, n)
	if err != nil {
		return "", err
	}
	if used := placeholders(pattern); len(used) > 1 || len(used) == 1 && len(name) > maxName {
		h := sha256.New()
		for _, word := range used {
			h.Write([]byte(n.of(word) + "\x00"))
		}
		sum := hex.EncodeToString(h.Sum(nil)[:12])
		name = name[:min(len(name), maxName-1-len(sum))] + "-" + sum
	}
	if !atoll.ValidName(name) {
		return "", fmt.Errorf("%q: volumes are named by a letter or digit, then up to 64 letters, digits, '-' or '_'", name)
	}
	return name, nil
}

// maxName is how long a valid name may be.
const maxName = 65
