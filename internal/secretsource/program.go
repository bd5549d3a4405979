package secretsource

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/program"
)

// A Program reads values in stores. The clients of stores are large, and only atoll-server links them: the processes that own sandboxes,
// and the client, run it for each value. It is a value of JSON, so that a process can tell another one which program to run.
type Program struct {
	Path string   `json:"path"`
	Env  []string `json:"env"` // tells it where the stores are, and has its credentials
}

// readerArgv0 is the name of a program that is to read one value.
const readerArgv0 = "atoll-secret-reader"

// readTimeout limits the time that a Program may take. A keyring may ask a person for a password.
const readTimeout = 30 * time.Second

// maxAnswer is the size in bytes of the longest answer of a Program, in JSON with escapes.
const maxAnswer = 8 * maxValue

// An answer is the output of a Program, in JSON.
type answer struct {
	Value   string     `json:"value,omitempty"`
	Kind    atoll.Kind `json:"kind,omitempty"` // "" for a value
	Message string     `json:"message,omitempty"`
}

// readsStores reports whether this program links the clients of stores. Only TakeOver, in init, sets it.
var readsStores bool

// TakeOver reads a value with read, prints it and ends this process, if it was started to do that by Program.Read. Otherwise it returns,
// and FindProgram chooses this program from now on. Call it in init.
func TakeOver(read func(ctx context.Context, source string) (string, error)) {
	if len(os.Args) != 2 || os.Args[0] != readerArgv0 {
		readsStores = true
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	value, err := read(ctx, os.Args[1])
	if err := json.NewEncoder(os.Stdout).Encode(newAnswer(value, err)); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// newAnswer returns the answer with a value, or with the reason for an error.
func newAnswer(value string, err error) answer {
	if err == nil {
		return answer{Value: value}
	}
	var e *atoll.Error
	if errors.As(err, &e) && e.Err != nil {
		return answer{Kind: e.Kind, Message: e.Err.Error()}
	}
	return answer{Kind: atoll.KindOf(err), Message: err.Error()}
}

// FindProgram returns the program that reads stores for this process, with the environment of this process: this program itself if it
// can, or atoll-server. Kinds: ErrUnavailable (there is none).
func FindProgram() (Program, error) {
	find := func() (string, error) { return program.Find("server") }
	if readsStores {
		find = os.Executable
	}
	path, err := find()
	if err != nil {
		return Program{}, atoll.Errorf("secret", "", atoll.ErrUnavailable, "only atoll-server reads vault:, aws: and keyring:, and it is neither beside this program nor in PATH: install it")
	}
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return !concernsStores(kv) })
	return Program{Path: path, Env: env}, nil
}

// storeVariables are the names of the variables that the clients of stores read, in capitals.
var storeVariables = []string{
	"HOME", "USER", "LOGNAME", "PATH", // also for a credential_process of AWS
	"XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", // keyrings
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"SYSTEMROOT", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "TEMP", // Windows
}

// concernsStores reports whether a variable of the environment is for the clients of stores.
func concernsStores(kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	name = strings.ToUpper(name)
	return strings.HasPrefix(name, "VAULT_") || strings.HasPrefix(name, "AWS_") || slices.Contains(storeVariables, name)
}

// Read returns the value at a source in a store. It blocks until the store has answered, 30 seconds at most. Kinds: those of Read.
func (p Program) Read(ctx context.Context, source string) (atoll.SecretValue, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.Path)
	cmd.Args = []string{readerArgv0, source}
	cmd.Env = slices.Concat([]string{}, p.Env) // not nil, which would be the environment of this process
	cmd.WaitDelay = time.Second
	if strings.HasPrefix(source, "keyring:") {
		cmd.SysProcAttr = outsideUser()
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", atoll.Errorf("secret", source, atoll.ErrUnavailable, "run the program that reads stores: %w; install Atoll there again", err)
	}
	data, err := io.ReadAll(io.LimitReader(out, maxAnswer))
	if len(data) == maxAnswer {
		cancel() // it would print more
	}
	err = errors.Join(err, cmd.Wait())
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "", atoll.Errorf("secret", source, atoll.ErrTimeout, "the store has not answered in %s; if it is a keyring, unlock it", readTimeout)
	}
	var a answer
	if json.Unmarshal(data, &a) != nil { // its error could have a part of the value
		return "", atoll.Errorf("secret", source, atoll.ErrUnavailable, "%s did not answer (%v): install the atoll-server of this release", p.Path, err)
	}
	if a.Kind != "" {
		return "", atoll.Errorf("secret", source, a.Kind, "%s", a.Message)
	}
	return trimValue(source, a.Value, true)
}
