package secretstore

import (
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"unicode/utf16"

	"github.com/zalando/go-keyring"

	"github.com/seed46cd37a8/atoll"
)

// readKeyring returns the password of SERVICE/ACCOUNT in the keyring of the user. An account has no slash.
func (r request) readKeyring() (string, error) {
	at := strings.LastIndexByte(r.rest, '/')
	if at <= 0 || r.rest[at+1:] == "" {
		return "", r.newError(atoll.ErrInvalid, "write it like keyring:SERVICE/ACCOUNT")
	}
	service, account := r.rest[:at], r.rest[at+1:]
	value, err := keyring.Get(service, account)
	switch {
	case err == nil && runtime.GOOS == "windows":
		return decodeWide(value), nil
	case err == nil:
		return value, nil
	case errors.Is(err, keyring.ErrNotFound):
		return "", r.newError(atoll.ErrNotExist, "the keyring has no such password: add it with %s", addCommand(service, account))
	case errors.Is(err, keyring.ErrUnsupportedPlatform):
		return "", r.newError(atoll.ErrUnavailable, "there is no keyring on %s", runtime.GOOS)
	case runtime.GOOS == "linux":
		return "", r.newError(atoll.ErrUnavailable, "the keyring of the desktop does not answer: start Atoll in a session with gnome-keyring, KWallet or KeePassXC, and unlock it: %w", err)
	}
	return "", r.newError(atoll.ErrUnavailable, "the keyring does not answer: unlock it: %w", err)
}

// decodeWide returns a text that may be in UTF-16, as cmdkey stores it, in UTF-8.
func decodeWide(text string) string {
	if len(text)%2 != 0 || !strings.Contains(text, "\x00") {
		return text
	}
	units := make([]uint16, len(text)/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16([]byte(text[2*i:]))
	}
	return string(utf16.Decode(units))
}

// addCommand returns the command that adds a password to the keyring of this system.
func addCommand(service, account string) string {
	switch runtime.GOOS {
	case "darwin":
		return "security add-generic-password -s '" + service + "' -a '" + account + "' -w"
	case "windows":
		return "cmdkey /generic:" + service + ":" + account + " /user:" + account + " /pass"
	}
	return "secret-tool store --label='" + service + "' service '" + service + "' username '" + account + "'"
}
