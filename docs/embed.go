// Package docs has the pages of the manual, for atoll help TOPIC.
package docs

import "embed"

// Pages has the pages of the manual and of the directory providers, and the small ones of the reference.
//
//go:embed *.md providers/*.md reference/errors.md reference/metrics.md
var Pages embed.FS
