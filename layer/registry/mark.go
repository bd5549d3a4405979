package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/secret"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// The hash of the secret, which is part of what the provider knows of a sandbox,
// says at the same time which store it was made with: its salt is made of the
// store's identity and the sandbox's id. A salt need only be another one for
// each secret. So a sandbox that is not written down can be told from one that
// others made on the same backend.

func salt(store store.Identity, id string) [16]byte {
	sum := sha256.Sum256([]byte("atoll salt\x00" + store.ID + "\x00" + id))
	return [16]byte(sum[:16])
}

// mark is what tells programs inside of the secret, as an environment variable.
func mark(store store.Identity, id, raw string) string {
	return atoll.SecretVar + "=" + secret.HashWith(salt(store, id), raw)
}

func isMark(kv string) bool { return strings.HasPrefix(kv, atoll.SecretVar+"=") }

// isOurs reports whether a sandbox with that environment was made with the store.
func isOurs(store store.Identity, id string, env []string) bool {
	s := salt(store, id)
	prefix := atoll.SecretVar + "=" + hex.EncodeToString(s[:]) + ":"
	return slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, prefix) })
}

// unmarked is env as the sandbox's maker gave it. It leaves env alone, which
// others may have, too.
func unmarked(env []string) []string {
	if !slices.ContainsFunc(env, isMark) {
		return env
	}
	var rest []string
	for _, kv := range env {
		if !isMark(kv) {
			rest = append(rest, kv)
		}
	}
	return rest
}
