package openai_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/engine/openai"
	"github.com/enginetest/enginetest/fixtures"
)

// A backend for the test of a router, in the test's own process.
func ExampleHandler() {
	e, err := engine.Open(context.Background(), engine.Config{Model: fixtures.Bundled(), Device: "cpu"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = e.Shutdown(context.Background()) }()
	backend := httptest.NewServer(openai.Handler(e, openai.Options{Name: "bundled"}))
	defer backend.Close()

	resp, err := backend.Client().Post(backend.URL+"/v1/completions", "application/json",
		strings.NewReader(`{"prompt": "2+3=", "temperature": 0}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	var answer struct {
		Model   string
		Choices []struct{ Text string }
	}
	err = json.NewDecoder(resp.Body).Decode(&answer)
	fmt.Println(resp.StatusCode == http.StatusOK, answer.Model, answer.Choices[0].Text, err)
	// Output: true bundled 5 <nil>
}
