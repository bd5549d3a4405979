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

// A wsl is the program wsl.exe.
type wsl struct{ path string }

// buildCommand returns a command that runs wsl.exe. It passes no environment on to distributions.
func (w wsl) buildCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, w.path, args...)
	cmd.Env = append(os.Environ(), "WSL_UTF8=1", "WSLENV=")
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// runWSL runs wsl.exe, and returns its output.
func (w wsl) runWSL(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := w.buildCommand(ctx, args...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &out
	err := cmd.Run()
	text := decodeOutput(out.Bytes())
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return "", commandError(args[0], text, err)
	}
	return text, nil
}

// decodeOutput decodes the output of wsl.exe: UTF-16, little-endian, mostly without a byte order
// mark, or UTF-8 from newer versions that are asked for it. Lines end with "\n".
func decodeOutput(b []byte) string {
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

// kindOfCode maps the codes at the end of wsl.exe's errors to kinds; the texts of the errors are in
// the user's language.
var kindOfCode = map[string]atoll.Kind{
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

// commandError returns the error of a wsl.exe that printed text.
func commandError(verb, text string, err error) error {
	kind := atoll.ErrInternal
	for line := range strings.Lines(text) {
		_, code, ok := strings.Cut(strings.TrimSpace(line), "Wsl/")
		if k, known := kindOfCode[code[strings.LastIndexByte(code, '/')+1:]]; ok && known {
			kind = k
		}
	}
	said := strings.Join(strings.Fields(text), " ")
	if said == "" {
		said = "no output"
	}
	if len(said) > maxOutput {
		said = said[:maxOutput] + "..."
	}
	err = fmt.Errorf("wsl.exe %s: %w: %s", verb, err, said)
	if kind == atoll.ErrUnavailable {
		err = fmt.Errorf("%w; %s", err, fixInstall)
	}
	return atoll.E("", "", kind, err)
}

// maxOutput bounds the bytes of wsl.exe's output in an error.
const maxOutput = 1 << 10

// Probe implements vm.Driver. It asks WSL for its version and its status.
func (d *Driver) Probe(ctx context.Context) atoll.Probe {
	if !d.isSupported() {
		return atoll.Probe{Reason: unsupportedReason(), Fix: "on Linux use qemu or firecracker, on macOS vz"}
	}
	w, err := d.findWSL()
	if err != nil {
		return atoll.Probe{Reason: "wsl.exe is not installed", Fix: fixInstall}
	}
	version, err := w.runWSL(ctx, nil, "--version")
	if err != nil {
		return atoll.Probe{Reason: "WSL is too old, or not installed: " + err.Error(), Fix: "wsl --update; or " + fixInstall}
	}
	if _, err := w.runWSL(ctx, nil, "--status"); err != nil {
		return atoll.Probe{Reason: "WSL does not work: " + err.Error(), Fix: fixInstall}
	}
	first, _, _ := strings.Cut(strings.TrimSpace(version), "\n")
	return atoll.Probe{OK: true, Notes: []string{first, "machines share CPUs, memory, network and kernel"}}
}
