package pool

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/seed46cd37a8/atoll"
)

// Fingerprint returns the same value for two specs if a sandbox of one can serve
// the other: they differ only in name, labels and TTL, and both or neither have a
// TTL. Call WithProvider first, which fills in defaults.
func Fingerprint(spec *atoll.Spec) string {
	s := *spec
	s.ID, s.Name, s.Labels = "", "", nil
	if s.TTL > 0 {
		s.TTL = 1
	}
	text, err := json.Marshal(s)
	if err != nil { // a Spec has only fields that JSON can encode
		panic(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// unpoolableField returns the name of a field in spec that a running sandbox cannot
// get; "" if there is none.
func unpoolableField(spec *atoll.Spec) string {
	switch {
	case spec.ID != "":
		return "id"
	case len(spec.Cmd) > 0:
		return "cmd"
	case spec.AutoRemove:
		return "auto_remove"
	case spec.NoStart:
		return "no_start"
	case len(spec.Secrets) > 0:
		return "secrets"
	}
	return ""
}

// newID returns a random ID for a sandbox of a pool: an ID of atoll.NewID whose
// last digits are a checksum of the others.
func newID() string {
	id := atoll.NewID()
	return id[:randomDigits] + idChecksum(id[:randomDigits])
}

// IsPoolID reports whether a pool may have created the sandbox with an ID. One in
// four billion other IDs matches, too, and callers can choose a matching ID.
func IsPoolID(id string) bool {
	return len(id) == 32 && id[randomDigits:] == idChecksum(id[:randomDigits])
}

// randomDigits is the number of digits of an ID before its checksum: more than 80
// random bits.
const randomDigits = 24

// idChecksum returns the last digits of a pool's ID, computed from the first.
func idChecksum(digits string) string {
	sum := sha256.Sum256([]byte("atoll pool " + digits))
	return hex.EncodeToString(sum[:])[:32-randomDigits]
}
