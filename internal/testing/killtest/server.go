package killtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
)

func serve(open func(ctx context.Context, database string) (Service, error), database string) error {
	service, err := open(context.Background(), database)
	if err != nil {
		return err
	}
	results := server.NewResults(server.Config{Records: service})
	add := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { add(service, w, req) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	s := http.Server{Handler: results.Handler(add, server.HandlerConfig{Scope: anyone, Required: true}), ReadHeaderTimeout: patience}
	return s.Serve(l)
}

// add is the handler inside the tracking. It takes some time and may fail, before or
// after its transaction.
func add(service Service, w http.ResponseWriter, req *http.Request) {
	request, _ := exactlyonce.RequestFromContext(req.Context())
	a := Addition{Step: request.Step}
	if _, err := fmt.Fscan(req.Body, &a.Position, &a.Value); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	time.Sleep(rand.N(3 * time.Millisecond))
	if rand.IntN(20) == 0 {
		http.Error(w, "not now", http.StatusInternalServerError)
		return
	}
	response := exactlyonce.Response{Status: http.StatusOK, Body: fmt.Append(nil, a.Position)}
	stored, err := service.Add(req.Context(), request, a, response.Encode())
	if err == nil {
		err = response.Decode(stored)
	}
	if err != nil || rand.IntN(20) == 0 { // the outer handler reads the record
		http.Error(w, fmt.Sprint("failed: ", err), http.StatusInternalServerError)
		return
	}
	response.Send(w)
}

// anyone returns the same principal for all requests: there is one client.
func anyone(*http.Request) (string, bool) { return "", true }
