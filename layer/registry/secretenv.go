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

// secretSalt returns the salt of a sandbox's secret. It is a hash of the store's
// identity and the sandbox's ID, so the salted secret in the sandbox's environment
// also shows which store created the sandbox. This distinguishes a sandbox without a
// record from one that others created on the same backend.
func secretSalt(store store.Identity, id string) [16]byte {
	sum := sha256.Sum256([]byte("atoll salt\x00" + store.ID + "\x00" + id))
	return [16]byte(sum[:16])
}

// secretEnv returns the environment variable that holds the hash of the secret, for
// programs in the sandbox.
func secretEnv(store store.Identity, id, raw string) string {
	return atoll.SecretVar + "=" + secret.HashWith(secretSalt(store, id), raw)
}

// isSecretEnv reports whether kv sets the variable of the secret.
func isSecretEnv(kv string) bool { return strings.HasPrefix(kv, atoll.SecretVar+"=") }

// madeWithStore reports whether a program with the store created the sandbox that
// has the environment env.
func madeWithStore(store store.Identity, id string, env []string) bool {
	s := secretSalt(store, id)
	prefix := atoll.SecretVar + "=" + hex.EncodeToString(s[:]) + ":"
	return slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, prefix) })
}

// withoutSecretEnv returns env without the variable of the secret. It does not
// modify env.
func withoutSecretEnv(env []string) []string {
	if !slices.ContainsFunc(env, isSecretEnv) {
		return env
	}
	var rest []string
	for _, kv := range env {
		if !isSecretEnv(kv) {
			rest = append(rest, kv)
		}
	}
	return rest
}
