//go:build linux

package gvisor

import (
	"debug/elf"
	"errors"
	"fmt"
	"sync"
)

// Static returns an error unless an executable is linked statically, as a Helper must be.
// It checks each path only once.
func Static(path string) error {
	if err, ok := checked.Load(path); ok {
		err, _ := err.(error)
		return err
	}
	err := checkStatic(path)
	if err == nil || err == errDynamic { // another error may be temporary
		checked.Store(path, err)
	}
	return err
}

var (
	checked    sync.Map // path -> errDynamic or nil
	errDynamic = errors.New("gVisor needs a statically linked binary: build with CGO_ENABLED=0, or use make")
)

func checkStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("helper %s: %w", path, err)
	}
	defer f.Close()
	for _, prog := range f.Progs {
		if prog.Type == elf.PT_INTERP {
			return errDynamic
		}
	}
	return nil
}
