//go:build linux

package sentry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/seed46cd37a8/atoll/internal/userdb"
	"github.com/seed46cd37a8/atoll/provider/internal/elf"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// Adopt implements supervisor.Adopter.
func (e *engine) Adopt(ctx context.Context, booted *supervisor.Job) error {
	if err := json.Unmarshal(e.job.Engine, &e.job.Plan); err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	within, err := filepath.Rel(booted.Dir, e.root)
	if err != nil {
		return err
	}
	e.root = filepath.Join(e.job.Dir, within)
	e.sentry.moveState(booted.Run, e.job.Run)
	for name, text := range e.etcFiles() { // nothing inside has read them yet
		if err := os.WriteFile(filepath.Join(e.root, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := e.setHostname(ctx, sandboxHostname(&e.job.Spec)); err != nil {
		return fmt.Errorf("set the hostname: %w", err)
	}
	if err := errors.Join(e.chownDataVolume(), e.makeWorkdir()); err != nil {
		return err
	}
	before := e.table // of commands that made the sandbox warm
	e.table = newTable(e.job.Spec.Resources.Memory)
	e.sandbox.Watch()
	return before.Close()
}

// moveState tells gVisor's packages the new place of the files that they have in a directory which was renamed.
func (s *sentry) moveState(from, to string) {
	s.conf.RootDir = to
	s.c.Saver = container.StateFile{RootDir: to, ID: s.c.Saver.ID} // the old one has opened its lock by its path
	s.sb.SetRootDir(to)
	if name, ok := strings.CutPrefix(s.sb.ControlSocketPath, from+"/"); ok {
		s.sb.ControlSocketPath = filepath.Join(to, name)
	}
}

// hostnameCode calls sethostname with the text that follows it, whose length patch writes into it, and exits with the result.
var hostnameCode = map[string]struct {
	machine uint16
	text    []byte
	patch   func(text []byte, length byte)
}{
	"amd64": {62, []byte{
		0xb8, 0xaa, 0x00, 0x00, 0x00, //             mov  eax, 170 (sethostname)
		0x48, 0x8d, 0x3d, 0x10, 0x00, 0x00, 0x00, // lea  rdi, [rip+name]
		0xbe, 0x00, 0x00, 0x00, 0x00, //             mov  esi, length
		0x0f, 0x05, //                               syscall
		0x89, 0xc7, //                               mov  edi, eax
		0xb8, 0x3c, 0x00, 0x00, 0x00, //             mov  eax, 60 (exit)
		0x0f, 0x05, //                               syscall
	}, func(text []byte, length byte) { text[13] = length }},
	"arm64": {183, []byte{
		0xc0, 0x00, 0x00, 0x10, // adr  x0, name
		0x01, 0x00, 0x80, 0x52, // mov  w1, #length
		0x28, 0x14, 0x80, 0x52, // mov  w8, #161 (sethostname)
		0x01, 0x00, 0x00, 0xd4, // svc  #0
		0xa8, 0x0b, 0x80, 0x52, // mov  w8, #93 (exit)
		0x01, 0x00, 0x00, 0xd4, // svc  #0
	}, func(text []byte, length byte) { text[4], text[5] = text[4]|length<<5, length>>3 }},
}

// hostnameELF returns an executable that sets the hostname, of at most 64 bytes.
func hostnameELF(arch, name string) ([]byte, error) {
	code, ok := hostnameCode[arch]
	if !ok {
		return nil, fmt.Errorf("gVisor does not run on %s", arch)
	}
	text := slices.Clone(code.text)
	code.patch(text, byte(len(name)))
	program := elf.Program{Machine: code.machine, Text: append(text, name...)}
	return program.Assemble(), nil
}

// memoryFile returns a file in memory, open for reading only.
func memoryFile(data []byte) (*os.File, error) {
	f, err := createMemoryFile("file")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return nil, err
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// setHostname sets the hostname that the inside sees. gVisor has no call for that, so a program inside does it, with a
// capability that no other one has.
func (e *engine) setHostname(ctx context.Context, name string) error {
	file, err := hostnameELF(runtime.GOARCH, name)
	if err != nil {
		return err
	}
	program, err := memoryFile(file)
	if err != nil {
		return err
	}
	defer program.Close()
	args, err := credArgs(userdb.Root())
	if err != nil {
		return err
	}
	if args.Capabilities, err = specutils.Capabilities(false, ociCaps([]string{"CAP_SYS_ADMIN"})); err != nil {
		return err
	}
	args.Argv, args.WorkingDirectory = []string{"hostname"}, "/"
	args.FilePayload = control.NewFilePayload(nil, program)
	pid, err := e.sentry.execProgram(ctx, args)
	if err != nil {
		return err
	}
	status, err := e.sentry.waitProgram(pid)
	if err == nil && status.ExitStatus() != 0 {
		err = unix.Errno(256 - status.ExitStatus())
	}
	return err
}

var _ supervisor.Adopter = (*engine)(nil)
