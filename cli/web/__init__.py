"""The page to try a server with: one aiohttp application on loopback, files without a build step."""
