//go:build !linux

package cgroup

import (
	"os"
	"time"
)

// A Hierarchy is that of a system without cgroups.
type Hierarchy struct{}

// Open returns it.
func Open(string) Hierarchy { return Hierarchy{} }

// Can reports that nothing can be limited.
func (Hierarchy) Can() (memory, cpu bool) { return false, false }

// A Group has no effect.
type Group struct{}

// Group returns the zero Group.
func (Hierarchy) Group(string) Group { return Group{} }

// What can be asked of a group does nothing, as of the zero Group anywhere.

func (Group) Make(Limits) error                                 { return nil }
func (Group) Limit(Limits) error                                { return nil }
func (Group) Dir() (*os.File, error)                            { return nil, nil }
func (Group) Join(int) error                                    { return nil }
func (Group) Leave() error                                      { return nil }
func (Group) Remove() error                                     { return nil }
func (Group) OOMKilled() bool                                   { return false }
func (Group) Usage() (memory int64, cpu time.Duration, ok bool) { return 0, 0, false }

// Protect does nothing: no system but Linux is told which processes to take when
// memory is used up.
func Protect(int) error { return nil }
