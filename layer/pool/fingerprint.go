package pool

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/seed46cd37a8/atoll"
)

// Fingerprint is the same for those specs whose sandboxes can stand for each
// other: which differ in nothing but name, labels, and how long they live, if
// both or neither end by themselves. Call MadeBy first, which fills in defaults.
func Fingerprint(spec *atoll.Spec) string {
	s := *spec
	s.ID, s.Name, s.Labels = "", "", nil
	if s.TTL > 0 {
		s.TTL = 1
	}
	text, err := json.Marshal(s)
	if err != nil { // there is nothing in it that cannot be
		panic(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// unfit names what spec asks for that no sandbox can be given which is running
// already; "" if there is nothing of the kind.
func unfit(spec *atoll.Spec) string {
	switch {
	case spec.ID != "":
		return "id"
	case len(spec.Cmd) > 0:
		return "cmd"
	case spec.AutoRemove:
		return "auto_remove"
	case spec.NoStart:
		return "no_start"
	}
	return ""
}

// newID draws the id of a sandbox that is made for a pool: one of NewID's whose last
// digits follow from the others.
func newID() string {
	id := atoll.NewID()
	return id[:drawn] + mark(id[:drawn])
}

// isOurs reports whether the sandbox with an id may have been made for a pool: one in
// four billion of others has such an id, and callers can choose one, too.
func isOurs(id string) bool { return len(id) == 32 && id[drawn:] == mark(id[:drawn]) }

// drawn is how many digits of an id are not its mark: more than 80 random bits.
const drawn = 24

func mark(digits string) string {
	sum := sha256.Sum256([]byte("atoll pool " + digits))
	return hex.EncodeToString(sum[:])[:32-drawn]
}
