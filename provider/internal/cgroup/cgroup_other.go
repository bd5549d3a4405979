//go:build !linux

package cgroup

import (
	"os"
	"time"
)

// A Hierarchy stands for the cgroups of a system that has none.
type Hierarchy struct{}

// Open returns the Hierarchy.
func Open(string) Hierarchy { return Hierarchy{} }

// FindBase returns the zero Base.
func (Hierarchy) FindBase() Base { return Base{} }

// A Group has no effect.
type Group struct{}

// Group returns the zero Group.
func (Hierarchy) Group(string) Group { return Group{} }

// The methods of a Group do nothing, like those of the zero Group on Linux.

func (Group) Make(Limits) error                                 { return nil }
func (Group) Limit(Limits) error                                { return nil }
func (Group) Dir() (*os.File, error)                            { return nil, nil }
func (Group) Join(int) error                                    { return nil }
func (Group) Leave() error                                      { return nil }
func (Group) Remove() error                                     { return nil }
func (Group) Thaw() error                                       { return nil }
func (Group) OOMKilled() bool                                   { return false }
func (Group) Usage() (memory int64, cpu time.Duration, ok bool) { return 0, 0, false }

// FixedMemory returns 0.
func (Group) FixedMemory() int64 { return 0 }

// Throttle does nothing.
func (Group) Throttle(Limits, bool) error { return nil }

// A MemoryWatch exists on Linux only.
type MemoryWatch struct{}

// WatchMemory returns nil: there is nothing to watch.
func (Group) WatchMemory(Limits) (*MemoryWatch, error) { return nil, nil }

// Ready, Wait and Close do nothing.
func (*MemoryWatch) Ready() bool  { return true }
func (*MemoryWatch) Wait() error  { return nil }
func (*MemoryWatch) Close() error { return nil }

// Protect does nothing: only Linux lets programs choose the first processes to kill when
// memory is used up.
func Protect(int) error { return nil }
