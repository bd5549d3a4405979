package supervised

import (
	"debug/elf"
	"fmt"
)

// IsStatic reports whether an executable is linked statically, so that it runs in images without libraries.
func IsStatic(path string) (bool, error) {
	f, err := elf.Open(path)
	if err != nil {
		return false, fmt.Errorf("helper %s: %w", path, err)
	}
	defer f.Close()
	for _, prog := range f.Progs {
		if prog.Type == elf.PT_INTERP {
			return false, nil
		}
	}
	return true, nil
}
