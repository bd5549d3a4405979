// Package secretsource reads the values of secrets from where they are, and makes placeholders for them.
package secretsource

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// maxValue is the size in bytes of the longest value.
const maxValue = 64 << 10

// stores are the schemes of the sources that a Program reads.
var stores = []string{"vault", "aws", "keyring"}

// IsStore reports whether a source is in a store, such as "vault:secret/ci#token". The value there may change at any time.
func IsStore(source string) bool {
	scheme, _, ok := strings.Cut(source, ":")
	return ok && slices.Contains(stores, scheme)
}

// IsKnown reports whether Read knows the scheme of a source.
func IsKnown(source string) bool {
	return strings.HasPrefix(source, "env:") || strings.HasPrefix(source, "file:") || IsStore(source)
}

// Forms says how sources are written.
const Forms = "env:VARIABLE, file:/path, vault:MOUNT/PATH#FIELD, aws:SECRET[#FIELD] or keyring:SERVICE/ACCOUNT"

// Read returns the value at a source. Of a file, which only its owner may read, it leaves out the end of the line. For a source in a
// store, it runs the program of FindProgram. Kinds: ErrInvalid, ErrNotExist, ErrDenied, ErrUnavailable, ErrTimeout, ErrInternal.
func Read(ctx context.Context, source string) (atoll.SecretValue, error) {
	if IsStore(source) {
		p, err := FindProgram()
		if err != nil {
			return "", err
		}
		return p.Read(ctx, source)
	}
	scheme, name, _ := strings.Cut(source, ":")
	var value string
	switch scheme {
	case "env":
		value = os.Getenv(name)
		if value == "" {
			return "", atoll.Errorf("secret", source, atoll.ErrNotExist, "the variable is not set, or empty")
		}
	case "file":
		f, err := fsutil.OpenOwned("secret", name, 0o077)
		if err != nil {
			return "", err
		}
		defer f.Close()
		data, err := io.ReadAll(io.LimitReader(f, maxValue+1))
		if err != nil {
			return "", atoll.E("secret", source, atoll.ErrInternal, err)
		}
		value = string(data)
	default:
		return "", atoll.Errorf("secret", source, atoll.ErrInvalid, "use "+Forms)
	}
	return trimValue(source, value, scheme == "file")
}

// trimValue returns the value of a source, without the end of its line if trim is set, or why it cannot be used.
func trimValue(source, value string, trim bool) (atoll.SecretValue, error) {
	if trim {
		value = strings.TrimRight(value, "\r\n")
	}
	if err := Check(value); err != nil {
		return "", atoll.E("secret", source, atoll.ErrInvalid, err)
	}
	return atoll.SecretValue(value), nil
}

// Check returns why a value cannot be part of a header, nil if it can. The error does not have the value.
func Check(value string) error {
	switch {
	case value == "":
		return errors.New("the value is empty")
	case len(value) > maxValue:
		return fmt.Errorf("the value is longer than %d bytes", maxValue)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f || r == unicode.ReplacementChar }):
		return errors.New("the value must be one line of text")
	}
	return nil
}

// prefixes are beginnings of tokens that say what they are for. Programs check them.
var prefixes = []string{
	"sk-ant-api03-", "sk-ant-oat01-", "sk-ant-", "sk-proj-", "sk-or-v1-", "sk-", "pk_live_", "sk_live_", "sk_test_", "github_pat_", "ghp_", "gho_", "ghu_",
	"ghs_", "ghr_", "glpat-", "xoxb-", "xoxp-", "xapp-", "npm_", "pypi-", "hf_", "gsk_", "AIza", "AKIA", "ASIA", "dckr_pat_", "dckr_oat_", "SG.", "r8_",
}

// The lengths of placeholders in bytes. One with fewer random characters than minRandom could be in a request by chance.
const (
	minRandom      = 20
	maxPlaceholder = 200
)

// NewPlaceholder returns a random text that looks like value: it has the same known prefix, the same length, and characters of the same
// kinds at the same places. If value is short, it is longer.
func NewPlaceholder(value atoll.SecretValue) string {
	text := string(value)
	text = text[:min(len(text), maxPlaceholder)]
	var b strings.Builder
	for _, prefix := range prefixes {
		if strings.HasPrefix(text, prefix) {
			b.WriteString(prefix)
			text = text[len(prefix):]
			break
		}
	}
	random := 0
	for _, c := range []byte(text) {
		alphabet := alphabetOf(c)
		if len(alphabet) > 1 {
			random++
		}
		b.WriteByte(chooseFrom(alphabet))
	}
	for ; random < minRandom; random++ {
		b.WriteByte(chooseFrom(lower + digits))
	}
	return b.String()
}

const (
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits = "0123456789"
)

// alphabetOf returns the characters of the same kind as c.
func alphabetOf(c byte) string {
	for _, alphabet := range []string{lower, upper, digits} {
		if strings.IndexByte(alphabet, c) >= 0 {
			return alphabet
		}
	}
	if strings.IndexByte("-_.", c) >= 0 {
		return string(c)
	}
	return lower // a placeholder needs no escapes anywhere
}

// chooseFrom returns a random character of an alphabet.
func chooseFrom(alphabet string) byte {
	i, _ := rand.Int(rand.Reader, big.NewInt(int64(len(alphabet)))) // never fails
	return alphabet[i.Int64()]
}
