"""The controller as a LangChain retriever and as a tool."""
