package sshd

import (
	"errors"
	"math"
	"strings"
	"unicode/utf8"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
)

// What requests and channels carry. Each comes from anyone who has logged in,
// and may be too short, too long, or nonsense.

var errPayload = errors.New("the request makes no sense")

// unmarshal reads a payload, all of it.
func unmarshal[T any](payload []byte) (v T, err error) {
	if ssh.Unmarshal(payload, &v) != nil {
		return v, errPayload
	}
	return v, nil
}

// The size of a terminal when the client does not know.
const (
	defaultRows = 24
	defaultCols = 80
)

// parsePTY reads the payload of pty-req. The modes that the client wishes for
// are not used: a terminal begins in the provider's.
func parsePTY(payload []byte) (term string, size atoll.Size, err error) {
	v, err := unmarshal[struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}](payload)
	if err != nil || !plain(v.Term, maxEnv) {
		return "", atoll.Size{}, errPayload
	}
	return v.Term, sizeOf(v.Rows, v.Cols), nil
}

// parseResize reads the payload of window-change.
func parseResize(payload []byte) (atoll.Size, error) {
	v, err := unmarshal[struct{ Cols, Rows, Width, Height uint32 }](payload)
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

// maxEnv is the longest variable that a client may send, name or value.
const maxEnv = 1 << 10

// parseEnv reads the payload of env: "NAME=value". Only what says how to talk to
// a person is let in; what steers programs, such as LD_PRELOAD or PATH, a command
// line can set as well, for which the key may have to be looked at.
func parseEnv(payload []byte) (string, error) {
	v, err := unmarshal[struct{ Name, Value string }](payload)
	if err != nil || !plain(v.Name, maxEnv) || !plain(v.Value, maxEnv) {
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

// plain reports whether s can be in an environment, and go over every wire.
func plain(s string, most int) bool {
	return len(s) <= most && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

// parseCommand reads the payload of exec.
func parseCommand(payload []byte) (string, error) {
	v, err := unmarshal[struct{ Line string }](payload)
	return v.Line, err
}

// parseSubsystem reads the payload of subsystem.
func parseSubsystem(payload []byte) (string, error) {
	v, err := unmarshal[struct{ Name string }](payload)
	return v.Name, err
}

// parseSignal reads the payload of signal: a name without SIG.
func parseSignal(payload []byte) (atoll.Signal, error) {
	v, err := unmarshal[struct{ Name string }](payload)
	if err != nil || strings.HasPrefix(v.Name, "SIG") || strings.Trim(v.Name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ12") != "" || strings.Trim(v.Name, "12") == "" {
		return 0, errPayload
	}
	return atoll.ParseSignal(v.Name)
}

// parseForward reads what a direct-tcpip channel is opened with: the port of the
// sandbox that is meant. All other hosts are refused, however they are spelt: the
// server is no way into its own network.
func parseForward(payload []byte) (port int, err error) {
	v, err := unmarshal[struct {
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
		return 0, errors.New("only ports of the sandbox itself can be reached: name localhost")
	}
	if v.Port < 1 || v.Port > math.MaxUint16 {
		return 0, errors.New("the port must be within 1..65535")
	}
	return int(v.Port), nil
}

// exitMessage tells how a process ended: the type of a request and its payload.
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
