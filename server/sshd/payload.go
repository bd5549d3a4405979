package sshd

import (
	"errors"
	"math"
	"strings"
	"unicode/utf8"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
)

// Payloads of requests and channels. Each may come from any logged-in client, and may
// be too short, too long, or nonsense.

var errPayload = errors.New("malformed request")

// parsePayload parses a whole payload.
func parsePayload[T any](payload []byte) (v T, err error) {
	if ssh.Unmarshal(payload, &v) != nil {
		return v, errPayload
	}
	return v, nil
}

// The size of a terminal if the client doesn't know it.
const (
	defaultRows = 24
	defaultCols = 80
)

// parsePTY parses the payload of pty-req. It ignores terminal modes: a terminal begins
// in the provider's.
func parsePTY(payload []byte) (term string, size atoll.Size, err error) {
	v, err := parsePayload[struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}](payload)
	if err != nil || !isPlain(v.Term, maxEnv) {
		return "", atoll.Size{}, errPayload
	}
	return v.Term, sizeOf(v.Rows, v.Cols), nil
}

// parseResize parses the payload of window-change.
func parseResize(payload []byte) (atoll.Size, error) {
	v, err := parsePayload[struct{ Cols, Rows, Width, Height uint32 }](payload)
	return sizeOf(v.Rows, v.Cols), err
}

func sizeOf(rows, cols uint32) atoll.Size {
	size := atoll.Size{Rows: defaultRows, Cols: defaultCols}
	if rows > 0 {
		size.Rows = uint16(min(rows, math.MaxUint16))
	}
	if cols > 0 {
		size.Cols = uint16(min(cols, math.MaxUint16))
	}
	return size
}

// maxEnv is the most bytes of the name or value of a client's variable.
const maxEnv = 1 << 10

// parseEnv parses the payload of env: "NAME=value". It only accepts variables of
// language and terminal; those that control programs, such as LD_PRELOAD or PATH, can
// be set in a command line, which a key's options may restrict.
func parseEnv(payload []byte) (string, error) {
	v, err := parsePayload[struct{ Name, Value string }](payload)
	if err != nil || !isPlain(v.Name, maxEnv) || !isPlain(v.Value, maxEnv) {
		return "", errPayload
	}
	if !allowedEnv(v.Name) {
		return "", errors.New("the variable is not accepted")
	}
	return v.Name + "=" + v.Value, nil
}

func allowedEnv(name string) bool {
	category, isLocale := strings.CutPrefix(name, "LC_")
	return name == "LANG" || name == "TERM" || isLocale && category != "" && strings.Trim(category, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == ""
}

// isPlain reports whether s is valid in an environment and on every wire.
func isPlain(s string, most int) bool {
	return len(s) <= most && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

// parseCommand parses the payload of exec.
func parseCommand(payload []byte) (string, error) {
	v, err := parsePayload[struct{ Line string }](payload)
	return v.Line, err
}

// parseSubsystem parses the payload of subsystem.
func parseSubsystem(payload []byte) (string, error) {
	v, err := parsePayload[struct{ Name string }](payload)
	return v.Name, err
}

// parseSignal parses the payload of signal: a name without SIG.
func parseSignal(payload []byte) (atoll.Signal, error) {
	v, err := parsePayload[struct{ Name string }](payload)
	if err != nil || strings.HasPrefix(v.Name, "SIG") || strings.Trim(v.Name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ12") != "" || strings.Trim(v.Name, "12") == "" {
		return 0, errPayload
	}
	return atoll.ParseSignal(v.Name)
}

// parseForward parses the payload of a direct-tcpip channel, and returns the port of
// the sandbox. It refuses all other hosts, however they are spelt: the server must not
// give access to its own network.
func parseForward(payload []byte) (port int, err error) {
	v, err := parsePayload[struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}](payload)
	if err != nil {
		return 0, err
	}
	switch v.Host {
	case "localhost", "127.0.0.1", "::1":
	default:
		return 0, errors.New("only ports of the sandbox itself can be forwarded: use localhost")
	}
	if v.Port < 1 || v.Port > math.MaxUint16 {
		return 0, errors.New("the port must be within 1..65535")
	}
	return int(v.Port), nil
}

// exitMessage describes the exit of a process: the type of a request and its payload.
func exitMessage(exit atoll.Exit) (kind string, payload []byte) {
	name, known := strings.CutPrefix(exit.Signal.String(), "SIG")
	if exit.Signal == 0 || !known {
		return "exit-status", ssh.Marshal(struct{ Code uint32 }{uint32(exit.Code)})
	}
	return "exit-signal", ssh.Marshal(struct {
		Name     string
		Core     bool
		Text     string
		Language string
	}{Name: name, Text: exit.Reason})
}
