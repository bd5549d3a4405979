//go:build linux

// Package engine makes each program that imports it an engine of native sandboxes: the program that is executed as the supervisor of
// a sandbox, and inside as the guest. The package takes over in init, if argv[0] asks for one of them.
//
// Program cmd/atoll-native is nothing else. A program that imports package native is an engine, too, unless it is built with the tag
// embedengine.
package engine

import _ "github.com/seed46cd37a8/atoll/provider/native/internal/keeper"
