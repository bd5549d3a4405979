package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// noteSalt is the key of the note with the salt of a sandbox's secret.
const noteSalt = "registry.salt"

// secretSalt returns the salt of a sandbox's secret. It is a hash of the store's
// identity and the sandbox's ID, so it also shows which store created the sandbox. This
// distinguishes a sandbox without a record from one that others created on the same
// backend.
func secretSalt(store store.Identity, id string) [16]byte {
	sum := sha256.Sum256([]byte("atoll salt\x00" + store.ID + "\x00" + id))
	return [16]byte(sum[:16])
}

// madeWithStore reports whether a program with the store created the sandbox with that
// spec and id.
func madeWithStore(store store.Identity, spec *atoll.Spec, id string) bool {
	salt := secretSalt(store, id)
	return spec.Note(noteSalt) == hex.EncodeToString(salt[:])
}

// isSecretVar reports whether kv sets the variable of the secret.
func isSecretVar(kv string) bool { return strings.HasPrefix(kv, atoll.SecretVar+"=") }

// systemOfOthers returns what other layers have added to the spec of a sandbox.
func systemOfOthers(spec *atoll.Spec) atoll.System {
	s := spec.Clone().System
	s.Env = slices.DeleteFunc(s.Env, isSecretVar)
	delete(s.Notes, noteSalt)
	return s
}
