package guest

import (
	"bytes"
	"debug/elf"
	"fmt"
)

// elfMachines maps GOARCH to the machine of ELF files.
var elfMachines = map[string]elf.Machine{
	"amd64": elf.EM_X86_64, "386": elf.EM_386, "arm64": elf.EM_AARCH64, "arm": elf.EM_ARM,
	"riscv64": elf.EM_RISCV, "s390x": elf.EM_S390, "ppc64le": elf.EM_PPC64, "loong64": elf.EM_LOONGARCH,
}

// Fits returns an error if program, the guest's, does not run on a computer with that GOARCH; the
// error says what to do.
func Fits(program []byte, arch string) error {
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return fmt.Errorf("the guest's program is not a Linux program: %w", err)
	}
	if machine, ok := elfMachines[arch]; ok && file.Machine == machine {
		return nil
	}
	return fmt.Errorf("the guest's program is for %s, but the machine is %s: build it with GOARCH=%[2]s make guest", file.Machine, arch)
}
