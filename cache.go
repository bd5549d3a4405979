package atoll

import (
	"fmt"
	"io/fs"
	"slices"
)

// CacheVolume is the name of each project's cache volume, which no other volume
// can have. It is made with the first sandbox that has a Spec.Cache, and
// RemoveVolume empties the cache, by removing it, when no such sandbox is left.
const CacheVolume = ".cache"

// CacheDirs lists the directories, relative to a user's home directory, that
// lead to the cache of a sandbox with Spec.Cache: those in which package
// managers, compilers and editors keep what they can fetch again.
func CacheDirs() []string { return slices.Clone(cacheDirs) }

var cacheDirs = []string{
	".bun/install/cache", ".bundle", ".cache", ".cargo/git", ".cargo/registry", ".ccache", ".composer/cache",
	".cursor-server", ".gem", ".gradle/caches", ".gradle/wrapper", ".local/share/uv", ".m2/repository", ".npm",
	".nuget/packages", ".pnpm-store", ".vscode-server", ".yarn", ".zed_server", "go/pkg/mod",
}

// ValidCachePath reports whether path can be one of Spec.CachePaths: relative,
// with slashes, below the directory that it is relative to, and without "." or
// "..".
func ValidCachePath(path string) bool { return fs.ValidPath(path) && path != "." }

func (s *Spec) validCache() error {
	if len(s.CachePaths) > 0 && !s.Cache {
		return fmt.Errorf("cache paths need cache")
	}
	for _, p := range s.CachePaths {
		if !ValidCachePath(p) {
			return fmt.Errorf("cache path %q: must be relative to the home directory, without \"..\", like .tool/cache", p)
		}
	}
	return nil
}
