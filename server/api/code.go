package api

import (
	"net/http"

	"github.com/seed46cd37a8/atoll"
)

func codeRoutes() []Route {
	return []Route{{
		Method: "POST", Path: "/v1/sandboxes/{id}/code", Name: "executeCode", Tag: "processes", Summary: "Run code and wait for it",
		Doc: "The languages are `python` (`python3`), `node` (`javascript`, `js`), `bash` and `sh`. For any other language the reply has code -1 and an explanation in `stderr`; " +
			"if the program cannot be started, the code is 127 (no interpreter) or 126. " +
			"The code may have 10 MiB. The program is killed if the client disconnects. `stdout` and `stderr` have the first 1 MiB of the output, cut at a character; " +
			"output that is not UTF-8 is encoded as `base64`.",
		Body: jsonOf[atoll.Code](), Reply: jsonOf[execReply](), serve: (*Handler).serveCode,
	}}
}

// maxCodeBody allows for JSON escapes of quotes and line ends, which can double the size of the
// code.
const maxCodeBody = 2 * atoll.MaxCode

func (h *Handler) serveCode(w http.ResponseWriter, r *http.Request) error {
	var code atoll.Code
	if err := h.decodeBodyUpTo(h.opts.MaxBody+maxCodeBody, w, r, &code, true); err != nil {
		return err
	}
	sb, err := h.findSandbox(r)
	if err != nil {
		return err
	}
	res, err := atoll.ExecuteCode(r.Context(), sb, &code)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, newExecReply(res))
	return nil
}
