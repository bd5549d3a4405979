package wire

import (
	"net/url"
	"strings"
)

// PathSegment escapes s for use as one segment of a URL path.
func PathSegment(s string) string {
	if s == "." || s == ".." {
		return strings.ReplaceAll(s, ".", "%2E")
	}
	return url.PathEscape(s)
}
