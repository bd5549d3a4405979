package api

import (
	"net/http"

	"github.com/seed46cd37a8/atoll"
)

func codeRoutes() []Route {
	return []Route{{
		Method: "POST", Path: "/v1/sandboxes/{id}/code", Name: "executeCode", Tag: "processes", Summary: "Run a program in a language and wait for it",
		Doc: "The languages are `python` (`python3`), `node` (`javascript`, `js`), `bash` and `sh`; any other gives code -1 and says so on `stderr`. " +
			"The code may have 10 MiB. Whoever hangs up kills the program. `stdout` and `stderr` hold the first 1 MiB, up to the last whole character of it; " +
			"their encoding is `base64` where they are not UTF-8.",
		Body: jsonOf[atoll.Code](), Reply: jsonOf[execReply](), serve: (*Handler).serveCode,
	}}
}

// maxCodeBody is for code of which JSON makes twice as much: it escapes quotes and the
// ends of lines.
const maxCodeBody = 2 * atoll.MaxCode

func (h *Handler) serveCode(w http.ResponseWriter, r *http.Request) error {
	var code atoll.Code
	if err := h.bodyUpTo(h.opts.MaxBody+maxCodeBody, w, r, &code, true); err != nil {
		return err
	}
	sb, err := h.sandbox(r)
	if err != nil {
		return err
	}
	res, err := atoll.ExecuteCode(r.Context(), sb, &code)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, replyOf(res))
	return nil
}
