"""Other people's asynchronous parameter servers, each written as its documentation shows.

They need nothing of ours but the turnstile and know no end of their own: `benchmarks.server`
starts them, lets them take turns and ends them.
"""
