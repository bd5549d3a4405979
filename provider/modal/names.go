package modal

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// names builds the names of a server's objects from its prefix. Names at Modal have up to 63
// letters, digits, '.', '_' and '-'.
type names string

var validName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,63}$`)

func (n names) dictName() string                     { return string(n) }
func (n names) outputDictName() string               { return string(n) + "-output" } // the Dict with the output of main processes
func (n names) sandboxName(id string) string         { return string(n) + "-" + id }
func (n names) caretakerName(id string) string       { return string(n) + "-files-" + id }
func (n names) guestVolumeName(digest string) string { return "atoll-guest-" + digest } // shared by all servers

// sandboxOf returns the id of the sandbox whose instance has that name; "" if no sandbox's has.
func (n names) sandboxOf(name string) string {
	rest, ok := strings.CutPrefix(name, n.sandboxName(""))
	if id, err := atoll.NormalizeID(rest); ok && err == nil && id == rest {
		return id
	}
	return ""
}

// hashWords returns a valid name at Modal for words that are not.
func hashWords(words ...string) string {
	h := sha256.New()
	for _, w := range words {
		_, _ = h.Write([]byte(w + "\x00"))
	}
	return hex.EncodeToString(h.Sum(nil)[:10])
}

// The tags of Atoll's instances.
const (
	tagOwner   = "atoll"         // the prefix
	tagRole    = "atoll-role"    // the role of the instance for a sandbox
	tagSession = "atoll-session" // the sandbox's id
	tagProject = "atoll-project"
	tagName    = "atoll-name" // of a sandbox
)

// The roles.
const (
	roleSandbox   = "sandbox"
	roleCaretaker = "caretaker"
)

// appName returns the name of a project's app.
func (o *Options) appName(project string) string {
	if !o.AppPerProject {
		return o.App
	}
	name := o.App + "-" + project
	if !validName.MatchString(name) { // two projects must not share an app by accident
		name = strings.TrimRight(o.App[:min(len(o.App), 40)], "-") + "-" + hashWords(project)
	}
	return name
}
