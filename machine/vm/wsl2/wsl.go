package wsl2

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/seed46cd37a8/atoll"
)

// wsl is the program of that name.
type wsl struct{ path string }

// command returns what runs wsl.exe. Nothing of our environment is for distributions.
func (w wsl) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, w.path, args...)
	cmd.Env = append(os.Environ(), "WSL_UTF8=1", "WSLENV=")
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run runs wsl.exe, and returns what it says.
func (w wsl) run(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := w.command(ctx, args...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &out
	err := cmd.Run()
	text := decode(out.Bytes())
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return "", failure(args[0], text, err)
	}
	return text, nil
}

// decode makes text of what wsl.exe prints: UTF-16 of the lesser byte first, most often
// without a mark, or UTF-8 from newer ones that are asked for it. The lines end as ours.
func decode(b []byte) string {
	b = bytes.TrimPrefix(b, []byte("\xff\xfe"))
	text := string(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")))
	if bytes.IndexByte(b, 0) >= 0 {
		units := make([]uint16, len(b)/2)
		for i := range units {
			units[i] = binary.LittleEndian.Uint16(b[2*i:])
		}
		text = string(utf16.Decode(units))
	}
	return strings.ReplaceAll(text, "\r\n", "\n")
}

// kinds are those of the codes that end wsl.exe's errors, whose sentences are in the
// language of the user.
var kinds = map[string]atoll.Kind{
	"WSL_E_DISTRO_NOT_FOUND":                  atoll.ErrNotExist,
	"ERROR_ALREADY_EXISTS":                    atoll.ErrAlreadyExists,
	"ERROR_FILE_EXISTS":                       atoll.ErrAlreadyExists,
	"ERROR_FILE_NOT_FOUND":                    atoll.ErrNotExist,
	"ERROR_PATH_NOT_FOUND":                    atoll.ErrNotExist,
	"E_ACCESSDENIED":                          atoll.ErrDenied,
	"E_INVALIDARG":                            atoll.ErrInvalid,
	"WSL_E_INVALID_USAGE":                     atoll.ErrInvalid,
	"WSL_E_IMPORT_FAILED":                     atoll.ErrInvalid,
	"ERROR_DISK_FULL":                         atoll.ErrExhausted,
	"HCS_E_HYPERV_NOT_INSTALLED":              atoll.ErrUnavailable,
	"HCS_E_SERVICE_NOT_AVAILABLE":             atoll.ErrUnavailable,
	"WSL_E_WSL_OPTIONAL_COMPONENT_REQUIRED":   atoll.ErrUnavailable,
	"WSL_E_VIRTUAL_MACHINE_PLATFORM_REQUIRED": atoll.ErrUnavailable,
}

// failure is the error of a wsl.exe that has said text.
func failure(verb, text string, err error) error {
	kind := atoll.ErrInternal
	for line := range strings.Lines(text) {
		_, code, ok := strings.Cut(strings.TrimSpace(line), "Wsl/")
		if k, known := kinds[code[strings.LastIndexByte(code, '/')+1:]]; ok && known {
			kind = k
		}
	}
	said := strings.Join(strings.Fields(text), " ")
	if said == "" {
		said = "it says nothing"
	}
	if len(said) > maxSaid {
		said = said[:maxSaid] + "..."
	}
	err = fmt.Errorf("wsl.exe %s: %w: %s", verb, err, said)
	if kind == atoll.ErrUnavailable {
		err = fmt.Errorf("%w; %s", err, fixInstall)
	}
	return atoll.E("", "", kind, err)
}

// maxSaid is how much an error repeats of what wsl.exe says.
const maxSaid = 1 << 10

// Probe implements vm.Driver. It asks WSL what it is, and for its distributions.
func (d *Driver) Probe(ctx context.Context) atoll.Probe {
	if !d.here() {
		return atoll.Probe{Reason: elsewhere(), Fix: "on Linux use qemu or firecracker, on macOS vz"}
	}
	w, err := d.program()
	if err != nil {
		return atoll.Probe{Reason: "there is no wsl.exe", Fix: fixInstall}
	}
	version, err := w.run(ctx, nil, "--version")
	if err != nil {
		return atoll.Probe{Reason: "WSL is too old, or not installed: " + err.Error(), Fix: "wsl --update; or " + fixInstall}
	}
	if _, err := w.run(ctx, nil, "--status"); err != nil {
		return atoll.Probe{Reason: "WSL does not work: " + err.Error(), Fix: fixInstall}
	}
	first, _, _ := strings.Cut(strings.TrimSpace(version), "\n")
	return atoll.Probe{OK: true, Notes: []string{first, "machines share CPUs, memory, network and kernel"}}
}
