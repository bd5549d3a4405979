//go:build linux

package sentry

import "fmt"

// The idle init runs as PID 1 of every sandbox: it ignores every
// signal, which also makes the kernel reap orphans for it, and sleeps for
// ever. It must work in images that have no program at all, and every start
// waits for it, so it is not a program of the image but an ELF executable
// of a few dozen instructions, assembled here.

// idleCode is position independent: for every signal n from 31 down to 1,
// rt_sigaction(n, {SIG_IGN}, NULL, 8); then wait for ever. The sigaction
// follows the code.
var idleCode = map[string]struct {
	machine uint16
	text    []byte
}{
	"amd64": {62, []byte{
		0xbb, 0x1f, 0x00, 0x00, 0x00, //                   mov  ebx, 31
		0xb8, 0x0d, 0x00, 0x00, 0x00, //             next: mov  eax, 13 (rt_sigaction)
		0x89, 0xdf, //                                     mov  edi, ebx
		0x48, 0x8d, 0x35, 0x17, 0x00, 0x00, 0x00, //       lea  rsi, [rip+action]
		0x31, 0xd2, //                                     xor  edx, edx
		0x41, 0xba, 0x08, 0x00, 0x00, 0x00, //             mov  r10d, 8
		0x0f, 0x05, //                                     syscall
		0xff, 0xcb, //                                     dec  ebx
		0x75, 0xe4, //                                     jnz  next
		0xb8, 0x22, 0x00, 0x00, 0x00, //             wait: mov  eax, 34 (pause)
		0x0f, 0x05, //                                     syscall
		0xeb, 0xf7, //                                     jmp  wait
	}},
	"arm64": {183, []byte{
		0xf3, 0x03, 0x80, 0x52, //                         mov  w19, #31
		0xe0, 0x03, 0x13, 0x2a, //                   next: mov  w0, w19
		0xc1, 0x01, 0x00, 0x10, //                         adr  x1, action
		0x02, 0x00, 0x80, 0xd2, //                         mov  x2, #0
		0x03, 0x01, 0x80, 0xd2, //                         mov  x3, #8
		0xc8, 0x10, 0x80, 0x52, //                         mov  w8, #134 (rt_sigaction)
		0x01, 0x00, 0x00, 0xd4, //                         svc  #0
		0x73, 0x06, 0x00, 0x71, //                         subs w19, w19, #1
		0x21, 0xff, 0xff, 0x54, //                         b.ne next
		0x00, 0x00, 0x80, 0xd2, //                   wait: mov  x0, #0
		0x01, 0x00, 0x80, 0xd2, //                         mov  x1, #0
		0x02, 0x00, 0x80, 0xd2, //                         mov  x2, #0
		0x03, 0x00, 0x80, 0xd2, //                         mov  x3, #0
		0x28, 0x09, 0x80, 0x52, //                         mov  w8, #73 (ppoll)
		0x01, 0x00, 0x00, 0xd4, //                         svc  #0
		0xfa, 0xff, 0xff, 0x17, //                         b    wait
	}},
}

// idleELF returns the executable for the given GOARCH.
func idleELF(arch string) ([]byte, error) {
	code, ok := idleCode[arch]
	if !ok {
		return nil, fmt.Errorf("gVisor does not run on %s", arch)
	}
	action := make([]byte, 32) // struct sigaction: handler SIG_IGN, no flags, empty mask
	action[0] = 1
	return assembleELF(code.machine, code.text, action), nil
}

// idleDir is the directory in which the sandbox sees the idle init. It is a file, although
// gVisor could execute an open descriptor, because a snapshot cannot save memory that is
// mapped from one.
const idleDir, idleName = "/.atoll", "init"
